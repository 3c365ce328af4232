"""What training and test see of histories."""

from collections.abc import Sequence
from typing import Any


def histories(interactions: Sequence[tuple[Any, Any, int]]) -> dict[Any, list[Any]]:
    """The items of each user, from (user, item, position), equal positions as they come."""
    found: dict[Any, list[Any]] = {}
    for user, item, _ in sorted(interactions, key=lambda interaction: interaction[2]):
        found.setdefault(user, []).append(item)
    return found


def leave_one_out(history: Sequence[Any]) -> dict[str, tuple[Sequence[Any], Any]]:
    """(items before, item asked for) in each split that a user is in."""
    training = history[:-2] if len(history) >= 3 else history
    asked = {"train": (training[:-1], training[-1])} if len(training) >= 2 else {}
    if len(history) >= 3:
        asked |= {"valid": (history[:-2], history[-2]), "test": (history[:-1], history[-1])}
    return asked
