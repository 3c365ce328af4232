"""Counts of the deltas and hidden rows of a version, and when it is due to be written anew."""

from typing import Any

from rails_ray.storage.described import Encoded

# A compaction is due beyond either.
MOST_DELTAS = 16
MOST_CHANGED = 0.05  # of all rows: those of deltas, and hidden ones


def is_compaction_due(described: Encoded) -> bool:
    """Decide whether deltas and hidden rows are so many that searches and starts suffer."""
    num_base = sum(part.num_live for part in described.parts if part.delta is None)
    num_changed = described.num_items - num_base
    return described.num_deltas > MOST_DELTAS or num_changed > MOST_CHANGED * described.num_items


def delta_facts(described: Encoded) -> dict[str, Any]:
    """The facts that a client may see: deltas, the items in them that are not hidden, and hidden rows."""
    return {
        "num_deltas": described.num_deltas,
        "num_in_deltas": sum(part.num_live for part in described.parts if part.delta is not None),
        "num_hidden": described.num_items - described.num_live,
        "is_compaction_due": is_compaction_due(described),
    }
