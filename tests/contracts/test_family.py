"""What every family must hold, from its config to an answer; a new family is one line in FAMILIES."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray.cutoffs.distributions import UNIFORM
from rails_ray.data.corpus import Corpus, item_inputs
from rails_ray.data.dataset import DataSet
from rails_ray.data.forms import FORMS, QueryForm
from rails_ray.data.queries import SPLITS, ItemLists
from rails_ray.errors import UnsupportedError
from rails_ray.families.config import DataConfig, FamilyConfig, RunConfig, allowed_here, from_json, to_json
from rails_ray.families.data import for_data, read_corpus, read_data
from rails_ray.families.items import Fitting, ItemEncoder
from rails_ray.families.training_family import TrainingFamily, training_family
from rails_ray.modules.encoders.frozen import FunctionConfig
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import AnyItems, AnyQuery, concatenate, take, tensors_of
from rails_ray.schema.requests import CutoffInput
from rails_ray.search.masks import Exclusions
from rails_ray.search.searcher import Searcher
from rails_ray.search.spec import SearchSpec
from rails_ray.serving.cutoffs import Cutoffs
from rails_ray.serving.encoder import encode
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.parquet import item_part, item_state, part_to_bytes
from rails_ray.training.piece import Given, fit
from support.data_folders import write_named_data, write_sequence_data, write_text_data, write_vector_data
from support.examples import (
    of_numbers,
    small_bm25_config,
    small_config,
    small_history_config,
    small_named_config,
    small_solar_config,
    small_vector_config,
)
from support.ranked import small_rbe_config, with_features, write_scored_data

SOFTMAX = ContrastiveConfig(kind="sampled_softmax")


FAMILIES: dict[str, tuple[RunConfig, Callable[[Path], Path]]] = {
    "dual encoder": (small_config(), write_text_data),
    "dual encoder, dot product": (small_config("dot product").with_family(loss=SOFTMAX), write_text_data),
    "dual encoder of histories": (small_history_config(num_items=0), write_sequence_data),
    "dual encoder of vectors": (small_vector_config(), write_vector_data),
    "dual encoder of vectors, dot product": (small_vector_config("dot product"), write_vector_data),
    "dual encoder of several vectors": (
        small_vector_config("mixture of given"),
        partial(write_vector_data, num_vectors=3),
    ),
    "dual encoder of named vectors": (small_named_config(), write_named_data),
    "cosine": (small_vector_config("cosine"), write_vector_data),
    "dual encoder of a frozen text model": (
        small_config().with_family(encoder=FunctionConfig(function="support.text_vectors:encode")),
        write_text_data,
    ),
    "SOLAR": (small_solar_config(num_chunks=2), write_text_data),
    "SOLAR of vectors": of_numbers("vector"),
    "SOLAR of features": of_numbers("features"),
    "BM25": (small_bm25_config(), write_text_data),
    "RBE": (small_rbe_config(), write_scored_data),
    "RBE with query features": (with_features(), write_scored_data),
    "RBE on a sphere": (small_rbe_config(is_on_sphere=True), write_scored_data),
}


@dataclass(frozen=True)
class Case:
    """A run that was trained in this process, without Ray."""

    config: RunConfig
    storage: Storage
    data: DataSet
    corpus: Corpus
    run: runs.Run
    validations: list[dict[str, Any]]
    model: Model
    items: AnyItems

    @property
    def own(self) -> TrainingFamily:
        return training_family(self.config, allowed_here(self.config))

    def weights(self) -> Iterator[tuple[str, bytes]]:
        return runs.weights(self.storage, self.run)

    def query(self, num: int = 5) -> AnyQuery:
        inputs = self.data.queries["test"].inputs.take(slice(0, num))
        with torch.no_grad():
            return self.model.encode_queries(self.model.query_features(inputs))

    def scores(self, query: AnyQuery) -> torch.Tensor:
        scores: torch.Tensor = self.model.similarity.scores(query, self.items)
        return scores

    def searcher(self) -> Searcher[Any]:
        return self.own.searcher(self.own.trained_similarity(self.weights()), self.items)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    config, write = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("family")
    training = replace(config.training, num_steps=12)
    config = replace(config, training=training, data=DataConfig(folder=str(write(folder / "data"))))
    storage = Storage(str(folder / "storage"))
    data = read_data(config, storage)
    config = for_data(config, data, allowed_here(config))
    own, validations = training_family(config, allowed_here(config)), []
    pieces = own.pieces()
    if [piece.name for piece in pieces] != [""]:
        runs.begin(storage, "r", to_json(config), data.digest(), [piece.name for piece in pieces])
    own.begin(data)(storage, "r")
    for piece in pieces:
        fitted = fit(piece, Given(read=data, storage=storage, run="r"))
        assert fitted is not None
        validations.append(fitted.validation)
        runs.write(
            storage,
            runs.piece_run("r", piece.name),
            weights=fitted.weights,
            validation=json.dumps(fitted.validation).encode(),
            training=fitted.training,
            config=to_json(config),
        )
    run = runs.read(storage, "r")
    model = own.trained_model(runs.weights(storage, run))
    items = own.run_items(storage, "r", model, data)
    return Case(config, storage, data, read_corpus(config, storage), run, validations, model, items)


def equal(one: AnyItems, other: AnyItems) -> bool:
    pairs = zip(tensors_of(one), tensors_of(other), strict=True)
    return type(one) is type(other) and all(torch.equal(a, b) for a, b in pairs)


def test_every_family_is_in_the_suite() -> None:
    assert {type(config.family) for config, _ in FAMILIES.values()} == set(get_args(FamilyConfig))
    assert {type(training_family(config).form) for config, _ in FAMILIES.values()} == {
        type(form) for form in FORMS.values()
    }


def test_its_config_comes_back_from_its_json(case: Case) -> None:
    assert from_json(to_json(case.config)) == case.config
    assert training_family(from_json(to_json(case.config)), case.own.allowed) == case.own


def test_its_config_says_all_that_its_data_decide(case: Case) -> None:
    assert for_data(case.config, case.data, case.own.allowed) == case.config
    case.own.check_can_be_asked(case.data)
    assert case.own.with_items(case.data.item_ids) == case.config


def test_its_form_reads_the_data(case: Case) -> None:
    assert isinstance(case.own.form, QueryForm)
    assert type(FORMS[case.model.form]) is type(case.own.form)
    assert case.corpus.items.read()["item_id"].to_pylist() == list(case.data.item_ids)
    assert all(len(case.data.queries[split]) > 0 for split in SPLITS)


def test_its_sizes_are_those_that_a_look_at_the_data_needs(case: Case) -> None:
    sizes, asked = case.own.sizes, case.data.queries["test"].inputs
    assert (sizes.num_buckets is None) == case.own.encodes_inputs
    assert sizes.num_buckets is None or 1 <= sizes.num_buckets <= len(case.data.item_ids), "as completed"
    assert (sizes.max_length is not None) == isinstance(asked, ItemLists), "histories, and no transformer is here"


def test_its_weights_are_a_model(case: Case) -> None:
    assert isinstance(case.model, Model)
    assert not case.model.training
    again = case.own.trained_model(case.weights())
    with torch.no_grad():
        features = again.query_features(case.data.queries["test"].inputs)
        states = again.encode_queries(features), case.model.encode_queries(features)
    assert all(torch.equal(a, b) for a, b in zip(*map(tensors_of, states), strict=True))
    paths = [path for path, _ in case.weights()]
    with pytest.raises(ValueError, match="weights must be safetensors, got"):
        case.own.trained_model([(path, b"none") for path in paths])


def test_its_similarity_needs_no_model(case: Case) -> None:
    query = case.query()
    found = case.own.trained_similarity(case.weights()).scores(query, case.items)
    assert torch.equal(found, case.scores(query))
    assert found.shape == (5, len(case.data.item_ids))


def test_it_fits_and_then_maps_each_block_for_itself(case: Case) -> None:
    asked = Fitting(
        storage=case.storage,
        folder="versions/v",
        run=case.run,
        corpus=case.corpus,
        new_codes="least_loaded",
        remotely=lambda function, *arguments: function(*arguments),
        training_queries=lambda: case.data.queries["train"],
    )
    for _ in range(2):  # what is there already is left as it is
        artefact = case.own.fit(asked)
        assert all(isinstance(fact, str) for fact in artefact.facts.values())
        artefact.store()
    read: list[str] = []

    def weights() -> Iterator[tuple[str, bytes]]:
        for path, content in case.weights():
            read.append(path)
            yield path, content

    encoder = case.own.item_encoder(case.storage, "versions/v", weights(), "cpu")
    assert isinstance(encoder, ItemEncoder)
    assert bool(read) == case.own.encodes_inputs, "weights are read only where they are needed"
    items = case.corpus.items.read().table
    blocks = [items.slice(first, 7) for first in range(0, items.num_rows, 7)]
    mapped = [
        encoder(block["item_id"].to_pylist(), item_inputs(block) if case.own.encodes_inputs else None)
        for block in blocks
    ]
    assert all(type(state) is case.own.item_state for state in mapped)
    for a, b in zip(tensors_of(concatenate(mapped)), tensors_of(case.items), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    for a, b in zip(tensors_of(mapped[1]), tensors_of(take(case.items, slice(7, 14))), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_its_items_come_back_from_a_part(case: Case) -> None:
    ids = pa.table({"item_id": case.data.item_ids.column})
    part = pq.read_table(io.BytesIO(part_to_bytes(item_part(ids, case.items))))
    back = item_state(part, case.own.item_state)
    assert equal(back, type(case.items).from_columns(case.items.columns()))
    query = case.query()
    assert torch.equal(case.model.similarity.scores(query, back), case.scores(query))


def test_its_exact_search_finds_the_best_scores(case: Case) -> None:
    searcher, query = case.searcher(), case.query()
    assert isinstance(searcher, Searcher)
    assert len(searcher) == len(case.items)
    found = searcher.search(query, SearchSpec(len(case.items) + 1))
    scores = case.scores(query)
    assert searcher.retriever("brute_force").is_exact
    assert found.num_found().tolist() == [len(case.items)] * 5
    assert torch.allclose(found.scores, scores.sort(dim=1, descending=True).values, atol=1e-6)
    assert torch.allclose(found.scores, scores.gather(1, found.item_rows), atol=1e-6)
    hidden = searcher.search(query, SearchSpec(1, mask=Exclusions.of(found.item_rows[:, :1].tolist())))
    assert torch.allclose(hidden.scores[:, 0], found.scores[:, 1], atol=1e-6)


def test_every_method_searches(case: Case) -> None:
    searcher, query = case.searcher(), case.query()
    for method in searcher.methods:
        found = searcher.search(query, SearchSpec(3), method)
        assert (found.num_found() <= 3).all()
        assert (found.gap(SearchSpec(3)) >= 0).all()


def test_it_explains_its_scores(case: Case) -> None:
    query, rows = case.query(), [4, 0]
    explained = case.searcher().explain(query, rows)
    assert torch.allclose(explained.scores, case.scores(query)[:, rows], atol=1e-6)
    assert torch.allclose((explained.cosines * explained.gates).sum(dim=(2, 3)), explained.scores, atol=1e-5)


def refused(is_offered: bool) -> Any:
    return nullcontext() if is_offered else pytest.raises(UnsupportedError)


def test_cut_offs_are_what_it_offers(case: Case) -> None:
    cutoff_support, num_items = case.own.cutoff_support, len(case.items)
    cutoffs = Cutoffs(cutoff_support, num_items, version_mass=None)
    with refused(cutoff_support.has_trained_temperature):
        cutoffs.policy(CutoffInput(mass=0.5), num_items)
    with refused(cutoff_support.has_trained_temperature and cutoff_support.width is not None):
        cutoffs.policy(CutoffInput(mass=0.5, background="sphere"), num_items)
    with refused(cutoff_support.training_logit is not None):
        cutoffs.check_logit()
    for name in ("nucleus", "probability"):
        with refused(cutoff_support.training_logit is not None):
            cutoffs.policy(CutoffInput(**{name: 0.5}), num_items, np.zeros(1))
    with refused(False):
        cutoffs.policy(CutoffInput(coverage=0.5), num_items)  # of a version that is not calibrated
    cutoffs.policy(CutoffInput(score=0.1), num_items)
    with (
        nullcontext()
        if not cutoff_support.has_bounded_scores
        else pytest.raises(ValueError, match="as scores of this model")
    ):
        cutoffs.policy(CutoffInput(score=7.5), num_items)
    with refused(cutoff_support.has_bounded_scores):
        cutoff_support.check_bounded_scores()
    cutoffs.policy(CutoffInput(top_k=3), num_items)
    assert cutoff_support.trained_by
    assert cutoff_support.distribution(UNIFORM) is not None


def test_what_it_offers_is_true_of_its_scores(case: Case) -> None:
    cutoff_support, query = case.own.cutoff_support, case.query()
    scores = case.scores(query)
    assert (query.temperature > 0).all()
    if cutoff_support.has_bounded_scores:
        assert scores.abs().max() <= 1 + 1e-6
    if cutoff_support.training_logit is not None:
        expected = cutoff_support.logit(scores, query.temperature).double().logsumexp(dim=1)
        found = case.searcher().log_sum_exp(query, cutoff_support.logit)
        assert torch.allclose(found.double(), expected, rtol=1e-5)


def test_its_example_is_read_and_encoded(case: Case) -> None:
    reader = case.own.form.reader(case.model, lambda name: case.corpus.files[name])
    encoded = encode(case.model, reader, [reader.example()])
    assert len(encoded.state) == 1
    assert case.scores(encoded.state).isfinite().all()


def test_it_takes_a_representation_or_refuses_it(case: Case) -> None:
    width = case.model.representation_width
    with nullcontext() if width else pytest.raises(ValueError, match=r"must be .*, got a representation"):
        assert len(case.model.query_state(torch.ones(1, width or 3))) == 1


def test_a_query_is_what_becomes_of_its_representation(case: Case) -> None:
    reader = case.own.form.reader(case.model, lambda name: case.corpus.files[name])
    features = case.model.query_features(reader.batch([reader.read(reader.example(), "query")]))
    if case.model.representation_width is None:
        with pytest.raises(ValueError, match=r"got a model"):
            case.model.represent(features)
        return
    with torch.no_grad():
        representation = case.model.represent(features)
        assert representation.shape == (1, case.model.representation_width)
        again, state = case.model.query_state(representation), case.model.encode_queries(features)
    assert torch.allclose(case.scores(again), case.scores(state))


def test_its_validation_says_where_to_cut(case: Case) -> None:
    report = case.own.validation(case.storage, "r", case.model, case.data)
    assert report.num_queries == len(case.data.queries["valid"])
    assert report.num_items == len(case.data.item_ids)
    assert json.loads(json.dumps(report.to_dict()))["cutoff_mass"] == report.cutoff_mass
    assert (report.cutoff_mass is not None) == case.own.cutoff_support.has_trained_temperature
    assert all("cutoff_mass" in validation for validation in case.validations)
    if len(case.validations) == 1:
        assert case.validations == [report.to_dict()]
