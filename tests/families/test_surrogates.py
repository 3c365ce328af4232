"""A version with a surrogate: fitted once, mapped block by block, stored, and searched."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import torch

from rails_ray.data.corpus import item_inputs
from rails_ray.errors import DamagedError
from rails_ray.families.config import DataConfig, RunConfig, to_json
from rails_ray.families.data import for_data, read_corpus, read_data, training_queries
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.items import Fitting
from rails_ray.families.training_family import training_family
from rails_ray.families.vector_items import surrogate_file
from rails_ray.modules.similarities.states import ItemState, QueryState, concatenate
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.spec import SearchSpec
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import item_part, item_state, part_to_bytes
from rails_ray.training.piece import Given, fit
from support.data_folders import write_sequence_data, write_text_data, write_vector_data
from support.examples import small_config, small_history_config, small_vector_config
from support.ranked import small_rbe_config

FIELDS = {"kind": "ridge", "width": 9, "num_items": 70, "num_supports": 5}


class Made(NamedTuple):
    """A run that was trained in this process, and how it is encoded."""

    own: DualEncoderTraining
    storage: Storage
    run: runs.Run
    asked: Fitting
    query: QueryState


def made(tmp_path: Path, config: RunConfig, write: Callable[[Path], Path], **fields: Any) -> Made:
    config = replace(
        config,
        data=DataConfig(folder=str(write(tmp_path / "data"))),
        training=replace(config.training, num_steps=12),
    )
    storage = Storage(str(tmp_path / "storage"))
    read = read_data(config, storage)
    config = for_data(config, read)
    [piece] = training_family(config).pieces()
    fitted = fit(piece, Given(read=read, storage=storage, run="r"))
    assert fitted is not None
    runs.write(
        storage,
        "r",
        weights=fitted.weights,
        validation=json.dumps(fitted.validation).encode(),
        training=fitted.training,
        config=to_json(config),
    )
    run = runs.read(storage, "r")
    own = training_family(training_family(config).stored_as(surrogate={**FIELDS, **fields}))
    assert isinstance(own, DualEncoderTraining)
    corpus = read_corpus(config, storage)
    asked = Fitting(
        storage=storage,
        folder="versions/v",
        run=run,
        corpus=corpus,
        new_codes="least_loaded",
        remotely=lambda function, *arguments: function(*arguments),
        training_queries=partial(training_queries, config, str(storage)),
        files=[corpus.items.scan(number).rows for number in range(corpus.items.num_files)],
    )
    model = own.trained_model(runs.weights(storage, run))
    with torch.no_grad():
        query = model.encode_queries(model.query_features(read.queries["test"].inputs))
    return Made(own, storage, run, asked, query)


def encoded(case: Made) -> ItemState:
    """All items of the corpus, in blocks of seven."""
    case.own.fit(case.asked).store()
    encode = case.own.item_encoder(case.storage, "versions/v", runs.weights(case.storage, case.run), "cpu")
    items = case.asked.corpus.items.read().table
    blocks = [items.slice(first, 7) for first in range(0, items.num_rows, 7)]
    state: Any = concatenate([encode(block["item_id"].to_pylist(), item_inputs(block)) for block in blocks])
    part = pq.read_table(io.BytesIO(part_to_bytes(item_part(items.select(["item_id"]), state))))
    read: Any = item_state(part, case.own.item_state)
    assert torch.equal(read.surrogate, state.surrogate)
    return state


CASES = {
    "texts": (small_config(), write_text_data),
    "histories": (small_history_config(num_items=0), write_sequence_data),
    "vectors": (small_vector_config(), write_vector_data),
}
cases = pytest.mark.parametrize(("config", "write"), CASES.values(), ids=CASES)


@cases
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="ridge"),
        pytest.param({"reads": "supports"}, id="supports"),
        pytest.param({"kind": "mlp"}, id="mlp", marks=pytest.mark.long),
    ],
)
def test_it_finds_candidates(
    tmp_path: Path, config: RunConfig, write: Callable[[Path], Path], fields: dict[str, Any]
) -> None:
    case = made(tmp_path, config, write, **fields)
    items = encoded(case)
    files = case.own.fit(case.asked).files()
    trained = case.own.trained_similarity(runs.weights(case.storage, case.run))
    similarity = case.own.version_similarity(trained, files.__getitem__)
    searcher = case.own.searcher(similarity.to("cpu"), items)
    assert "surrogate" in searcher.methods
    best = searcher.search(case.query, SearchSpec(5))
    found = searcher.search(case.query, SearchSpec(5), "surrogate", SearchParams(num_candidates=len(items) // 2))
    hits = (found.item_rows[:, :, None] == best.item_rows[:, None]).any(dim=2).float().mean()
    assert hits > 0.75  # half of the items at random have half of the best
    assert torch.equal(found.scores[:, 0] <= best.scores[:, 0] + 1e-6, torch.ones(len(case.query), dtype=torch.bool))
    assert not searcher.retriever("surrogate").is_exact
    why = "candidates by a surrogate's vectors: what they leave out may have any score"
    assert found.reasons == [why] * len(found.reasons)
    everything = searcher.search(case.query, SearchSpec(5), "surrogate", SearchParams(num_candidates=len(items)))
    assert torch.equal(everything.item_rows, best.item_rows)
    assert everything.gap(SearchSpec(5)).tolist() == [0.0] * len(case.query)


def test_it_is_fitted_once(tmp_path: Path) -> None:
    case = made(tmp_path, *CASES["texts"])
    fitted = case.own.fit(case.asked)
    fitted.store()
    path, before = f"versions/v/{surrogate_file.NAME}", fitted.files()
    there = surrogate_file.from_bytes(before[surrogate_file.NAME])
    case.storage.write(path, surrogate_file.to_bytes(replace(there, mean=there.mean + 1)))
    case.own.fit(case.asked).store()
    assert case.own.fit(case.asked).files() != before, "what is there stays"
    case.storage.write(path, before[surrogate_file.NAME][:-9])
    with pytest.raises(DamagedError, match=r"surrogate\.safetensors must hold a surrogate"):
        case.own.fit(case.asked).files()
    other = training_family(case.own.stored_as(surrogate={"width": 8}))
    assert other.storing != case.own.storing, "another surrogate is another version"


def test_its_numbers_are_narrowed_with_the_others(tmp_path: Path) -> None:
    case = made(tmp_path, *CASES["texts"])
    half = case._replace(own=DualEncoderTraining.of(case.own.stored_as(dtype="float16")))
    surrogate, narrow = encoded(case).surrogate, encoded(half).surrogate
    assert surrogate is not None
    assert narrow is not None
    assert narrow.dtype == torch.float16
    assert torch.allclose(narrow.float(), surrogate, rtol=1e-3, atol=1e-3)


def test_more_supports_than_items(tmp_path: Path) -> None:
    case = made(tmp_path, *CASES["texts"], reads="supports", num_supports=999, num_items=999)
    with pytest.raises(ValueError, match=r"num_supports must be at most the .* items, got 999"):
        case.own.fit(case.asked)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small_config("dot product"), "surrogate must stand for a mixture of several components, got run .*, whose"),
        (small_rbe_config(), "surrogate must stand for a mixture of several components, got run .*, whose score is"),
    ],
    ids=["dot product", "RBE"],
)
def test_a_score_that_needs_none(config: RunConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        training_family(config).stored_as(surrogate={"kind": "ridge"})


def test_beside_codes() -> None:
    with pytest.raises(
        ValueError, match=r"surrogate\.kind must be none for codes, got items\.kind pq: leave out the codes"
    ):
        training_family(small_config()).stored_as(surrogate={"kind": "ridge"}, codes=(2, 16))


def test_without_training_queries(tmp_path: Path) -> None:
    case = made(tmp_path, *CASES["texts"])
    path = Path(str(case.asked.training_queries.args[0].data.folder)) / "queries.parquet"  # type: ignore[attr-defined]
    table = pq.read_table(path)
    pq.write_table(table.filter([split != "train" for split in table["split"].to_pylist()]), path)
    with pytest.raises(ValueError, match="train"):
        case.own.fit(case.asked).store()
