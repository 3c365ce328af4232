"""How many examples a property is tried on: few in `make test`, many in `make test-all`."""

import os

from hypothesis import settings

FEW, MANY = 10, 50 if os.environ.get("CI") else 100
IS_MANY = os.environ.get("RAILS_RAY_EXAMPLES") == "many"


def tried(most: int = MANY) -> settings:
    """Settings of a property whose examples take long: at most so many of them."""
    return settings(max_examples=min(most, MANY) if IS_MANY else min(most, FEW))
