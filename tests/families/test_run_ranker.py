"""A run as a heavy ranker: its own scores, pair by pair, and RBE before it."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rails_ray.errors import NotFoundError
from rails_ray.families.config import DataConfig, from_json
from rails_ray.families.data import read_data
from rails_ray.families.rbe import run_ranker
from rails_ray.families.rbe.run_ranker import RunRanker
from rails_ray.families.training_family import training_family
from rails_ray.reranking.rankers import HeavyRanker, candidates_of
from rails_ray.reranking.rankers.calling import ranker_of, scores_of
from rails_ray.schema.ranker import RankerConfig
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_sequence_data, write_text_data
from support.examples import random_states, small_config, small_history_config, write_untrained_run


def test_its_scores_are_the_models(tmp_path: Path) -> None:
    store = Storage(str(tmp_path))
    config = replace(small_config(), data=DataConfig(folder=str(write_text_data(tmp_path / "data"))))
    write_untrained_run(store, "mol", config)
    path = "rails_ray.families.rbe.run_ranker:RunRanker"
    ranker = ranker_of(RankerConfig(path=path, folder=f"{tmp_path}/runs/mol"))
    assert isinstance(ranker, HeavyRanker)
    found = runs.read(store, "mol")
    own = training_family(from_json(found.config))
    model, data = own.trained_model(runs.weights(store, found)), read_data(config, store)
    items = own.run_items(store, "mol", model, data)
    with torch.no_grad():
        query = model.encode_queries(model.query_features(["red hat"]))
        expected = model.similarity.scores(query, items)[0].tolist()
    candidates = candidates_of(list(data.item_ids), list(data.item_inputs))
    for rows in (slice(0, 10), slice(5, 60), slice(59, 60)):
        assert scores_of(ranker, {"text": "red hat"}, candidates[rows]) == pytest.approx(expected[rows], abs=1e-6)


def test_threads_share_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread encodes an item, another fills what is kept, and it is begun anew."""
    store = Storage(str(tmp_path))
    config = replace(small_config(), data=DataConfig(folder=str(write_text_data(tmp_path / "data"))))
    write_untrained_run(store, "mol", config)
    texts = ["red hat", "blue car", "green boat", "gold ring", "plum tree"]
    encode, query = run_ranker.encode_items, {"text": "red"}

    def ask(ranker: RunRanker, asked: Sequence[str]) -> list[float]:
        return ranker(query, candidates_of(range(len(asked)), asked))

    alone = ask(RunRanker(f"{tmp_path}/runs/mol"), texts)
    shared, others = RunRanker(f"{tmp_path}/runs/mol"), list[list[float]]()
    ask(shared, texts[:1])

    def encode_beside_another(*given: Any) -> Any:
        monkeypatch.setattr(run_ranker, "encode_items", encode)
        for part in (texts[2:4], texts[4:], texts[3:]):
            other = threading.Thread(target=lambda part=part: others.append(ask(shared, part)))
            other.start()
            other.join()
        return encode(*given)

    monkeypatch.setattr(run_ranker, "MOST_KEPT", 1)
    monkeypatch.setattr(run_ranker, "encode_items", encode_beside_another)
    assert ask(shared, texts[:2]) == pytest.approx(alone[:2], abs=1e-6)
    for scores, expected in zip(others, (alone[2:4], alone[4:], alone[3:]), strict=True):
        assert scores == pytest.approx(expected, abs=1e-6)


def test_a_ranker_goes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(small_config(), data=DataConfig(folder=str(write_text_data(tmp_path / "data"))))
    write_untrained_run(Storage(str(tmp_path)), "mol", config)
    ranker = RunRanker(f"{tmp_path}/runs/mol", "meta")  # a device without numbers
    asked, (state, _) = list[Any](), random_states(1, 1)
    monkeypatch.setattr(ranker.model, "encode_queries", lambda features: asked.append(features) or state)
    ranker._encoded("red hat")
    assert {parameter.device.type for parameter in ranker.model.parameters()} == {"meta"}
    assert asked[0].tokens.device.type == "meta"


def test_runs_that_cannot_rank(tmp_path: Path) -> None:
    store = Storage(str(tmp_path))
    data = DataConfig(folder=str(write_sequence_data(tmp_path / "data", num_items=9)))
    write_untrained_run(store, "sasrec", replace(small_history_config(), data=data))
    with pytest.raises(ValueError, match="a run that ranks must be one of texts, got run 'sasrec'"):
        RunRanker(f"{tmp_path}/runs/sasrec")
    with pytest.raises(ValueError, match="a ranker's folder must be STORAGE/runs/NAME, got '/somewhere'"):
        RunRanker("/somewhere")
    with pytest.raises(NotFoundError, match="nothing"):
        RunRanker(f"{tmp_path}/runs/nothing")
