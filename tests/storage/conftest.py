"""A client of S3 that loses no time; how often it tries, and what it makes of an answer, is as ever."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from botocore import session
from botocore.retries.standard import ExponentialBackoff


@pytest.fixture(autouse=True, scope="module")
def quick_client() -> Iterator[None]:
    """It pauses for a twentieth of the time between two tries, and the megabyte of JSON that describes S3 is read for
    one client and not for each, of which every test has its own."""
    delay_amount = ExponentialBackoff.delay_amount

    def short_delay(self: ExponentialBackoff, context: Any) -> float:
        return delay_amount(self, context) / 20

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExponentialBackoff, "delay_amount", short_delay)
        patch.setattr(session, "create_loader", cache(session.create_loader))
        yield
