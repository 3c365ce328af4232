"""RBE's family: supports and their sizes, holes, singular matrices, and what does not fit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.scored import ScoredTexts
from rails_ray.errors import UnavailableError
from rails_ray.families.config import DataConfig, RunConfig, allowed_here
from rails_ray.families.data import for_data, read_data
from rails_ray.families.rbe.config import RbeConfig, TopShareConfig
from rails_ray.families.rbe.serve import ByRelevance
from rails_ray.families.rbe.train import RbeTraining, support_queries
from rails_ray.families.training_family import training_family
from rails_ray.families.vector_items.storing import PqItems
from rails_ray.reranking.rankers import candidates_of
from rails_ray.reranking.supports import RandomSupports
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.storage.filesystem import Storage
from rails_ray.training.piece import Given, fit
from support.data_folders import write_text_data
from support.ranked import small_rbe_config, write_scored_data


def completed(config: RunConfig, folder: Path) -> tuple[RbeTraining, DataSet]:
    config = replace(config, data=DataConfig(folder=str(folder)))
    read = read_data(config, Storage(str(folder)))
    own = training_family(for_data(config, read, allowed_here(config)), allowed_here(config))
    assert isinstance(own, RbeTraining)
    return own, read


def trained(own: RbeTraining, read: DataSet, folder: Path) -> Any:
    [piece] = own.pieces()
    return fit(piece, Given(read=read, storage=Storage(str(folder)), run="r"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scored_data(tmp_path_factory.mktemp("scored"))


def test_the_config_says_its_sizes(folder: Path) -> None:
    own, read = completed(small_rbe_config(), folder)
    num_train = len(read.queries["train"])
    assert (own.own.num_items, own.own.num_support_queries) == (60, num_train)
    few, _ = completed(small_rbe_config(num_support_queries=9), folder)
    assert few.learned(read).support_relevance.shape == (6, 9)


def test_supports_are_chosen_on_the_workers_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, read = completed(small_rbe_config(), folder)
    devices = list[str]()

    def watched(selection: Any, relevance: torch.Tensor, num_supports: int, **how: Any) -> torch.Tensor:
        devices.append(relevance.device.type)
        return torch.arange(num_supports)

    monkeypatch.setattr("rails_ray.families.rbe.train.select_supports", watched)
    for device in ("meta", "cpu"):  # meta: a device without numbers
        own.pieces()[0].prepare(Given(read=read, storage=Storage(str(folder)), run="r", device=device))
    assert devices == ["meta", "cpu"]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"num_supports": 61}, "num_supports must be at most the 60 items of .*, got 61"),
        ({"num_best": 61}, "num_best must be at most the 60 items of .*, got 61"),
        ({"num_items": 59}, "num_items must be the 60 items of .*, or 0, got 59"),
        ({"num_support_queries": 999}, "num_support_queries must be at most the .* training queries of .*, got 999"),
    ],
)
def test_sizes_that_do_not_fit(folder: Path, fields: dict[str, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        completed(small_rbe_config(**fields), folder)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"num_supports": 0}, "num_supports must be at least 1, got 0"),
        ({"ridge": -1.0}, "ridge must be a finite number of at least 0, got -1.0"),
        ({"items": PqItems(num_subspaces=7)}, "items.num_subspaces must divide the 128 numbers of a vector"),
        ({"items": PqItems(), "is_on_sphere": True}, r"divide the 129 numbers of a vector \(.* \+ 1 on a sphere\)"),
        ({"items": PqItems(), "index": IvfConfig()}, "index.kind must be flat in fp32 for items.kind pq, got ivf"),
    ],
)
def test_configs_that_make_no_sense(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        RbeConfig(**fields)


def test_on_a_sphere_items_are_of_one_length_and_scores_stay(folder: Path, tmp_path: Path) -> None:
    own, read = completed(small_rbe_config(), folder)
    weights = [("model.safetensors", trained(own, read, tmp_path).weights)]
    plain, lying = (
        training_family(own.config.with_family(is_on_sphere=is_on_sphere), own.allowed).trained_model(weights)
        for is_on_sphere in (False, True)
    )
    queries = read.queries["test"].inputs.take(slice(0, 9))
    new = ByRelevance(lying)(["new", "newer"], ["red new boat", "x"])
    items = ByRelevance(lying)(read.item_ids, read.item_inputs)
    assert items.components.norm(dim=2).flatten().tolist() == pytest.approx([1.0] * 60, abs=1e-5)
    for found, expected in (
        (items, ByRelevance(plain)(read.item_ids, read.item_inputs)),
        (new, ByRelevance(plain)(["new", "newer"], ["red new boat", "x"])),
    ):
        assert found.components.shape[2] == expected.components.shape[2] + 1
        scores, others = (
            model.similarity.scores(model.encode_queries(model.query_features(queries)), state)
            for model, state in ((lying, found), (plain, expected))
        )
        assert torch.allclose(scores, others, atol=1e-4)


def test_texts_without_scores_do_not_train(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must have a table of scores, got none: make them with `rails-ray relevance`"):
        completed(small_rbe_config(), write_text_data(tmp_path / "texts"))


def holes(items: slice, queries: slice = slice(None)) -> Callable[[np.ndarray], np.ndarray]:
    def changed(scores: np.ndarray) -> np.ndarray:
        scores[queries, items] = np.nan
        return scores

    return changed


def test_holes_are_never_supports_and_training_goes_on(tmp_path: Path) -> None:
    folder = write_scored_data(tmp_path, changed=holes(slice(10, 50), slice(0, 14)))
    own, read = completed(small_rbe_config(), folder)
    model = own.learned(read)
    rows = {int(str(support.item_id).removeprefix("item-")) for support in model.supports}
    assert not rows & set(range(10, 50))
    assert model.combinations.isfinite().all()
    fitted = trained(own, read, tmp_path)
    assert np.isfinite(fitted.training["losses"]).all()


def test_a_few_queries_with_holes_are_no_support_queries(tmp_path: Path) -> None:
    """Every item has a hole at one of four queries in twenty, and one item is never scored."""

    def changed(scores: np.ndarray) -> np.ndarray:
        scores[np.arange(60) % 4, np.arange(60)] = np.nan
        scores[:, 7] = np.nan
        return scores

    own, read = completed(small_rbe_config(), write_scored_data(tmp_path, changed=changed))
    train = read.queries["train"].inputs
    assert isinstance(train, ScoredTexts)
    rows = own.support_query_rows(train)
    has_all = ~np.isnan(train.scores[rows]).any(axis=0)
    assert has_all.sum() >= 12, "two for each support"
    assert 40 < len(rows) < len(train)
    model = own.learned(read)
    assert model.support_relevance.isfinite().all()
    others = torch.cat([model.combinations[:7], model.combinations[8:]])
    assert torch.allclose(model.combinations[7], others.mean(dim=0), atol=1e-5)
    assert "item-7" not in {support.item_id for support in model.supports}
    assert np.isfinite(trained(own, read, tmp_path).training["losses"]).all()


def test_items_with_holes_cost_no_support_query_while_others_have_none(tmp_path: Path) -> None:
    own, read = completed(small_rbe_config(), write_scored_data(tmp_path, changed=holes(slice(3, 30), slice(0, 9))))
    train = read.queries["train"].inputs
    assert isinstance(train, ScoredTexts)
    assert len(own.support_query_rows(train)) == len(train)


@pytest.mark.parametrize("share", [0.001, 0.005, 0.02])
def test_holes_at_random_leave_supports(share: float) -> None:
    draws = np.random.default_rng(0)
    scores = draws.standard_normal((300, 500)).astype(np.float32)
    scores[draws.random(scores.shape) < share] = np.nan
    train = ScoredTexts(Texts(["q"] * 300), list(range(500)), scores)
    rows = support_queries(train, 0, 0, num_supports=20)
    assert (~np.isnan(scores[rows]).any(axis=0)).sum() >= 20
    assert len(rows) >= 20
    assert support_queries(train, len(rows), 0, num_supports=20).tolist() == rows.tolist(), "a completed config"


def test_too_few_items_without_a_hole(tmp_path: Path) -> None:
    def changed(scores: np.ndarray) -> np.ndarray:
        scores[np.arange(len(scores)), np.arange(len(scores))] = np.nan  # one in every query
        return scores

    own, read = completed(small_rbe_config(num_supports=45), write_scored_data(tmp_path, changed=changed))
    with pytest.raises(ValueError, match=r"45 items must have all, got \d+: take fewer supports or support queries"):
        own.learned(read)


def test_a_query_without_any_score_takes_no_part(tmp_path: Path) -> None:
    folder = write_scored_data(tmp_path, changed=holes(slice(None), slice(0, 1)))
    own, read = completed(small_rbe_config(), folder)
    assert np.isfinite(trained(own, read, tmp_path).training["losses"]).all()


@pytest.mark.parametrize("ridge", [0.0, 0.001])
def test_a_singular_matrix_trains(tmp_path: Path, ridge: float) -> None:
    """All items score alike but for a factor: of any six supports one says all."""

    def flat(scores: np.ndarray) -> np.ndarray:
        return scores[:, :1] * np.linspace(1, 2, scores.shape[1]) + 0.1

    folder = write_scored_data(tmp_path, changed=flat)
    own, read = completed(small_rbe_config(ridge=ridge), folder)
    model = own.learned(read)
    assert model.combinations.isfinite().all()
    estimated = model.combinations @ model.support_relevance
    inputs = read.queries["train"].inputs
    assert isinstance(inputs, ScoredTexts)
    assert estimated.T.numpy() == pytest.approx(inputs.scores, abs=0.05)
    assert np.isfinite(trained(own, read, tmp_path).training["losses"]).all()


def test_a_matrix_of_one_score_is_refused(tmp_path: Path) -> None:
    own, read = completed(small_rbe_config(), write_scored_data(tmp_path, changed=lambda scores: 0 * scores))
    with pytest.raises(
        ValueError, match="relevances must differ from each other, got a matrix of standard deviation 0"
    ):
        own.learned(read)


def test_training_that_makes_nothing_better_changes_nothing(folder: Path, tmp_path: Path) -> None:
    config = small_rbe_config(loss=TopShareConfig())
    config = replace(config, training=replace(config.training, learning_rate=1e-9, validate_every=4))
    own, read = completed(config, folder)
    fitted = trained(own, read, tmp_path)
    stored = own.trained_model([("weights", fitted.weights)])
    begun = own.learned(read)
    for name, tensor in begun.state_dict().items():
        assert torch.equal(tensor, stored.state_dict()[name]), name
    assert fitted.training["validations"][0]["step"] == 0


def test_nothing_that_is_measured_comes_from_the_validation_queries(folder: Path, tmp_path: Path) -> None:
    """Means and deviations of what the networks see, sigma, the supports and the combinations are the training
    queries' alone."""
    own, read = completed(small_rbe_config(), folder)
    before = own.trained_model([("weights", trained(own, read, tmp_path).weights)])
    train, valid = (read.queries[split].inputs for split in ("train", "valid"))
    assert isinstance(train, ScoredTexts)
    assert isinstance(valid, ScoredTexts)
    queries = read.queries["valid"]
    other = replace(queries, inputs=replace(valid, scores=7 - 100 * valid.scores))
    changed = replace(read, queries={**read.queries, "valid": other})
    after = own.trained_model([("weights", trained(own, changed, tmp_path).weights)])
    measured = [name for name, _ in before.named_buffers()]
    assert len(measured) == 7
    for name in measured:
        assert torch.equal(before.get_buffer(name), after.get_buffer(name)), name
    rows = [int(str(support.item_id).removeprefix("item-")) for support in before.supports]
    scaled = train.scores[:, rows].astype(np.float64) / train.scores.std(dtype=np.float64, ddof=1)
    assert before.embedding.sigma.item() == pytest.approx(train.scores.std(dtype=np.float64, ddof=1))
    assert before.embedding.of_queries.mean.numpy() == pytest.approx(scaled.mean(axis=0), abs=1e-5)
    assert before.embedding.of_queries.deviation.numpy() == pytest.approx(scaled.std(axis=0), abs=1e-5)


def test_downsampled_candidates_are_drawn_from_the_seed(folder: Path) -> None:
    own, read = completed(small_rbe_config(num_candidates=20, supports=RandomSupports()), folder)
    again = own.learned(read).supports
    assert own.learned(read).supports == again
    other, _ = completed(replace(small_rbe_config(num_candidates=20, supports=RandomSupports()), seed=1), folder)
    assert other.learned(read).supports != again


def test_support_queries_are_all_or_a_seeded_draw(folder: Path) -> None:
    _, read = completed(small_rbe_config(), folder)
    train = read.queries["train"].inputs
    assert isinstance(train, ScoredTexts)
    assert support_queries(train, 0, 0).tolist() == list(range(len(train)))
    few = support_queries(train, 7, 0)
    assert few.tolist() == sorted(set(few.tolist()))
    assert few.tolist() != support_queries(train, 7, 1).tolist()


def test_new_items_that_no_query_can_score(folder: Path) -> None:
    own, read = completed(small_rbe_config(), folder)
    model = own.learned(read)

    def failing(query: Any, asked: Any) -> Any:
        raise RuntimeError("gone")

    model._made = failing
    told = "item 'new' must be scored for at least one support query, got none: the heavy ranker .* RuntimeError: gone"
    with pytest.raises(UnavailableError, match=told):
        model.item_features(candidates_of(["new"], ["red car"]))
    with pytest.raises(UnavailableError, match="the heavy ranker must score 6 items, got RuntimeError: gone"):
        model.query_features(["red car"])


# The table of scores


def changed_scores(tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    folder = write_scored_data(tmp_path)
    for path in (folder / "scores").iterdir():
        path.write_bytes(b"") if change is None else pq.write_table(
            pa.table(change(pq.read_table(path).to_pydict())), path
        )
    return folder


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda rows: rows | {"scores": [own[1:] for own in rows["scores"]]},
            "must hold 60 scores, one for each item, got 59",
        ),
        (
            lambda rows: rows | {"scores": [[np.inf, *own[1:]] for own in rows["scores"]]},
            "must hold finite scores, or NaN",
        ),
        (
            lambda rows: rows | {"query_id": [own + 1000 for own in rows["query_id"]]},
            "column 'query_id' of .* must hold ids of",
        ),
        (lambda rows: {"query_id": rows["query_id"]}, "must have a column 'scores'"),
    ],
)
def test_tables_of_scores_that_are_wrong(tmp_path: Path, change: Callable[..., Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        completed(small_rbe_config(), changed_scores(tmp_path, change))
