"""The bench of ties: what another order of them is."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from jobs.benches import ties
from rails_ray.data.forms.history import HistoryForm, SequenceData
from rails_ray.data.sources import Sources
from support.data_folders import write_sequence_data
from support.inspected import change


def of_days(folder: Path) -> SequenceData:
    """Interactions in threes of one time."""
    change(
        write_sequence_data(folder),
        "interactions",
        lambda found: found.drop_columns(["position"]).append_column(
            "timestamp", pa.array(1_700_000_000 + np.arange(len(found)) // 3)
        ),
    )
    return HistoryForm().read(Sources(str(folder)))


def test_another_order_moves_ties_alone(tmp_path: Path) -> None:
    read = of_days(tmp_path)
    other, again, third = (ties.reordered(read, seed) for seed in (0, 0, 1))
    assert other.histories.rows.tolist() == again.histories.rows.tolist()
    assert other.histories.rows.tolist() != third.histories.rows.tolist()
    assert other.histories.rows.tolist() != read.histories.rows.tolist()
    assert other.histories.times is not None
    assert read.histories.times is not None
    assert other.histories.times.tolist() == read.histories.times.tolist()
    for before, after, first in zip(read.histories, other.histories, read.histories.starts[:-1], strict=True):
        assert read.sort_keys is not None
        keys = read.sort_keys[first : first + len(before)]
        assert Counter(zip(keys, before, strict=True)) == Counter(zip(keys, after, strict=True))
    for split, held_out in (("valid", 2), ("test", 1)):
        lasts = [history[-held_out] for history in other.histories if len(history) >= 3]
        assert other.queries[split].relevant.rows.tolist() == lasts


def test_data_without_ties_are_refused(tmp_path: Path) -> None:
    ties.check_ties(of_days(tmp_path / "days"))
    read = HistoryForm().read(Sources(str(write_sequence_data(tmp_path / "plain"))))
    with pytest.raises(ValueError, match="must have ties at the end of a history, got positions that all differ"):
        ties.check_ties(read)


def test_a_summary() -> None:
    assert ties.summary([0.1, 0.3]) == "0.2000, standard deviation 0.1414, 0.1000 to 0.3000"
    assert ties.summary([0.1]) == "0.1000, standard deviation unknown, 0.1000 to 0.1000"
