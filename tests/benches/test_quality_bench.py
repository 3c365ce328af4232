"""What the bench of quality concludes from what it has recorded."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jobs.benches import quality, quality_rows
from jobs.benches.quality import fitting
from jobs.benches.quality_measures import difference
from jobs.benches.quality_models import Cell, Settings, config_of, to_row
from jobs.benches.record import recorded
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import read_data
from rails_ray.families.dual_encoder.config import DualEncoderConfig
from rails_ray.families.recipes import by_name
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.bootstrap import RESAMPLES
from support.data_folders import write_sequence_data

MOL, DOT, WIDE = (Cell("ml-1m", "sasrec", similarity) for similarity in ("mol", "dot", "wide"))


def ranks(folder: Path, name: str, best_rank: np.ndarray) -> Path:
    place = folder / f"{name}.npz"
    np.savez(place, best_rank=best_rank.astype(np.int32), ndcg=(1 / np.log2(1 + best_rank)).astype("f4"))
    return place


def test_a_difference_is_that_of_the_means_and_its_p_the_share_of_resamples_that_deny_it(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).integers(1, 40, size=500)
    better, same = ranks(tmp_path, "better", np.maximum(drawn // 2, 1)), ranks(tmp_path, "same", drawn)
    found = difference([better], [same])
    hits = (np.maximum(drawn // 2, 1) <= 10).mean(), (drawn <= 10).mean()
    assert found["hr@10"] == pytest.approx(hits[0] - hits[1])
    assert found["relative_hr"] == pytest.approx(hits[0] / hits[1] - 1)
    assert found["relative_hr_low"] < found["relative_hr"] < found["relative_hr_high"]
    assert found["hr_p"] == found["ndcg_p"] == 1 / (RESAMPLES + 1)
    assert difference([same], [same])["hr_p"] == 1.0
    of_two_seeds = difference([better, same], [same, same])
    assert of_two_seeds["hr@10"] == pytest.approx(found["hr@10"] / 2)


def test_what_the_trials_of_a_cell_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def trial(cell: Cell, width: int, mrr: float, epochs: float) -> dict[str, Any]:
        return {"kind": "trial", **to_row(cell, Settings(width=width)), "mrr": mrr, "epochs": epochs}

    rows = [trial(MOL, 128, 0.9, 1.0), trial(MOL, 32, 0.1, 5.0), trial(MOL, 64, 0.2, 5.0), trial(DOT, 256, 0.3, 5.0)]
    monkeypatch.setattr(quality_rows, "recorded", lambda name: rows)
    assert [row["settings"]["width"] for row in quality_rows.trials(MOL)] == [32, 64]  # the longest alone
    assert fitting(WIDE, Settings(width=128)).width == 64  # of the mixture's best trial
    assert fitting(DOT, Settings(width=128)).width == 128


def test_the_long_recipes_are_what_was_measured(tmp_path: Path) -> None:
    read = read_data(long_mixture(tmp_path), Storage("."))
    tuned = Settings(width=128, temperature=0.0404, learning_rate=2.13e-3)
    of_hstu = Settings(temperature=0.0764, learning_rate=2.52e-3)
    for cell, settings, name in (
        (MOL, Settings(), "ml1m-sasrec-mol-long"),
        (DOT, tuned, "ml1m-sasrec-long"),
        (replace(MOL, encoder="hstu"), of_hstu, "ml1m-hstu-mol-long"),
        (replace(DOT, encoder="hstu"), tuned, "ml1m-hstu-long"),
    ):
        measured = config_of(cell, settings, read, 100.0, 32)
        ours, theirs = by_name(name).family, measured.family
        assert isinstance(ours, DualEncoderConfig)
        assert isinstance(theirs, DualEncoderConfig)
        for part in ("components", "similarity", "negatives", "loss"):
            assert getattr(ours, part) == getattr(theirs, part), (name, part)
        for field in ("kind", "width", "num_blocks", "num_heads", "max_length", "dropout"):
            assert getattr(ours.encoder, field) == getattr(theirs.encoder, field), (name, field)
        for field in ("batch_size", "learning_rate", "weight_decay"):
            assert getattr(by_name(name).training, field) == getattr(measured.training, field), (name, field)


def long_mixture(folder: Path) -> RunConfig:
    return replace(by_name("ml1m-sasrec-mol-long"), data=DataConfig(folder=str(write_sequence_data(folder))))


def test_as_many_numbers(tmp_path: Path) -> None:
    read = read_data(long_mixture(tmp_path), Storage("."))
    families = {cell: config_of(cell, Settings(), read, 1.0, 32).family for cell in (MOL, DOT, WIDE)}
    numbers = {cell: own.numbers_of_item for cell, own in families.items() if isinstance(own, DualEncoderConfig)}
    assert numbers == {MOL: 5 * 64 + 32, DOT: 64, WIDE: 5 * 64 + 32}


def test_groups_of_queries_are_not_looked_for_among_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list[dict[str, Any]]()
    of_vectors = (Cell("tldr", "vectors", "mol"), "dot", [])
    monkeypatch.setattr(quality, "_compared", lambda seeds: iter([of_vectors]))
    monkeypatch.setattr(quality, "Record", lambda name: SimpleNamespace(row=lambda **row: rows.append(row)))
    quality.compare_groups(quality.Arguments(task="groups", data=Path("nowhere")))
    assert not rows


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> quality.Arguments:
    write_sequence_data(tmp_path / "walks")
    monkeypatch.setattr("jobs.benches.record.RESULTS", tmp_path / "results")
    monkeypatch.setattr("jobs.benches.quality_models.HISTORIES", {"walks": 8})
    cell, settings = Cell("walks", "esasrec", "dot"), Settings(width=16, num_negatives=8)
    given: Any = {"cell": cell, "data": tmp_path, "settings": settings, "state": tmp_path / "state"}
    return quality.Arguments(task="train", epochs=4.0, curve=2, **given)


@pytest.mark.long
def test_a_cell_that_has_ended_is_not_trained_again(arguments: quality.Arguments) -> None:
    quality.main(arguments)
    quality.main(arguments)
    [row] = [row for row in recorded(quality.NAME) if row.get("kind") == "cell"]
    assert row["encoder"] == "esasrec"
    quality.main(replace(arguments, epochs=5.0))
    assert len([row for row in recorded(quality.NAME) if row.get("kind") == "cell"]) == 2


def test_all_runs_the_other_benches_of_mixtures(arguments: quality.Arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    called = list[tuple[str, Any]]()
    monkeypatch.setattr(quality, "CELLS", [])
    for name in quality.OTHERS:
        monkeypatch.setattr(f"jobs.benches.{name}.main", lambda own, name=name: called.append((name, own)))
    quality.main(replace(arguments, task="all", device="cuda"))
    assert [name for name, _ in called] == list(quality.OTHERS)
    tables, vectors, texts, _ = (own for _, own in called)
    assert (tables.data, tables.device) == (arguments.data, "cuda")
    assert vectors.state == texts.state == arguments.state
