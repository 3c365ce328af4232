"""What every form of query must hold: from a folder's tables to a request that its model reads."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray.data.corpus import Corpus, item_inputs
from rails_ray.data.dataset import DataSet
from rails_ray.data.forms import FORMS, QueryForm, QueryReader
from rails_ray.data.queries import Inputs
from rails_ray.data.sources import Sources
from rails_ray.errors import NotFoundError
from rails_ray.families.config import DataConfig, RunConfig, allowed_here
from rails_ray.families.data import for_data, read_corpus, read_data
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.rbe.train import RbeTraining
from rails_ray.families.solar.train import SolarTraining
from rails_ray.families.training_family import TrainingFamily, training_family
from rails_ray.modules.model import Model
from rails_ray.schema.queries import QUERY_FIELDS, QueryInput
from rails_ray.serving.encoder import encode
from rails_ray.storage.filesystem import Storage
from support.data_folders import (
    write_named_data,
    write_number_data,
    write_sequence_data,
    write_text_data,
    write_vector_data,
)
from support.examples import (
    small_config,
    small_history_config,
    small_named_config,
    small_solar_config,
    small_vector_config,
)
from support.ranked import small_rbe_config, write_scored_data


def solar(form: str) -> RunConfig:
    made = small_solar_config(num_chunks=2)
    return made.with_family(encoder=replace(made.family.encoder, input=form, ngram_sizes=()))


CASES: dict[str, list[tuple[RunConfig, Callable[[Path], Path]]]] = {
    "text": [(small_config(), write_text_data), (solar("text"), write_text_data)],
    "vector": [
        (solar("vector"), lambda folder: write_number_data(folder, "vector")),
        (small_vector_config(), write_vector_data),
    ],
    "named_vectors": [(small_named_config(), write_named_data)],
    "features": [(solar("features"), lambda folder: write_number_data(folder, "features"))],
    "scored_text": [(small_rbe_config(), write_scored_data)],
    "history": [(small_history_config(), lambda folder: write_sequence_data(folder, num_items=9))],
}


@dataclass(frozen=True)
class Case:
    """A form with a data set, a model and what reads the requests of a version."""

    name: str
    own: TrainingFamily
    data: DataSet
    corpus: Corpus
    model: Model
    reader: QueryReader

    @property
    def form(self) -> QueryForm:
        return FORMS[self.name]


def untrained(config: RunConfig, data: DataSet) -> Model:
    if config.family.kind == "dual_encoder":
        return DualEncoderTraining.of(config).model().eval()
    if config.family.kind == "rbe":
        return RbeTraining(config, config.family, allowed_here(config)).learned(data).eval()
    own = SolarTraining.of(config)
    chunks = {number: own.chunk(number) for number in range(2)}
    for chunk in chunks.values():
        chunk.learn(data.queries["train"].inputs)
    return own.solar(chunks)


@pytest.fixture(
    params=[(name, number) for name, cases in CASES.items() for number in range(len(cases))],
    ids=lambda param: f"{param[0]}-{CASES[param[0]][param[1]][0].family.kind}",
)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    name, number = request.param
    config, write = CASES[name][number]
    config = replace(config, data=DataConfig(folder=str(write(tmp_path / "data"))))
    data = read_data(config, Storage(str(tmp_path)))
    config = for_data(config, data)
    corpus, model = read_corpus(config, Storage(str(tmp_path))), untrained(config, data)
    return Case(name, training_family(config), data, corpus, model, FORMS[name].reader(model, corpus.files.__getitem__))


def test_every_form_is_in_the_suite() -> None:
    assert FORMS.keys() == CASES.keys()
    assert all(isinstance(form, QueryForm) for form in FORMS.values())


def test_a_family_and_its_model_read_one_form(case: Case) -> None:
    assert type(case.own.form) is type(case.form)
    assert case.model.form == case.name
    assert isinstance(case.reader, QueryReader)


def test_the_corpus_is_that_of_the_data_set(case: Case) -> None:
    """In the same order, whatever part of it an encoding task has."""
    source = case.corpus.items
    items, files = source.read().table, [source.scan(0).rows]
    assert items["item_id"].to_pylist() == case.data.item_ids
    assert (items["title"].to_pylist() if "title" in items.column_names else None) == case.data.titles
    [block] = source.blocks(files, 2, 3)
    assert block.to_pylist() == items.slice(2, 3).to_pylist()
    if case.own.encodes_inputs:
        for some, rows in ((items, range(len(items))), (block, range(2, 5))):
            expected = [case.data.item_inputs[row] for row in rows]
            assert all(map(np.array_equal, item_inputs(some), expected))


def test_what_a_version_says_of_its_queries_is_named_by_the_fields(case: Case) -> None:
    assert list(case.corpus.query) == list(case.form.fields)


def test_a_folder_without_tables(case: Case, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for read in (case.form.read, case.form.corpus):
        with pytest.raises(NotFoundError, match=r"\.parquet"):
            read(Sources(str(tmp_path / "empty")))


def test_inputs_are_taken_apart(case: Case) -> None:
    for queries in case.data.queries.values():
        assert isinstance(queries.inputs, Inputs)
        assert len(queries.head(2).inputs) == min(2, len(queries))
        assert case.model.query_features(queries.head(2).inputs) is not None


def test_the_example_is_a_request_that_is_answered(case: Case) -> None:
    example = case.reader.example()
    QueryInput.model_validate({name: _as_json(value) for name, value in example.items()})
    [field] = example
    assert field in case.form.fields
    encoded = encode(case.model, case.reader, [example, example])
    assert len(encoded.state) == len(encoded.seen) == len(encoded.is_known) == 2


def _as_json(value: Any) -> Any:
    return {str(key): own for key, own in value.items()} if isinstance(value, dict) else value


def test_queries_of_the_data_are_encoded_as_requests_are(case: Case) -> None:
    inputs = case.data.queries["test"].head(3).inputs
    requests = {
        "text": lambda text: {"text": text},
        "scored_text": lambda text: {"text": text},
        "vector": lambda vector: {"embedding": vector.tolist()},
        "named_vectors": lambda row: {"embeddings": {"title": row[:4].tolist(), "body": row[4:].tolist()}},
        "features": lambda pairs: {"features": dict(zip(*(part.tolist() for part in pairs), strict=True))},
        "history": lambda rows: {"history": [case.data.item_ids[row] for row in rows]},
    }
    asked = [requests[case.name](inputs[number]) for number in range(len(inputs))]
    encoded = encode(case.model, case.reader, asked)
    with torch.no_grad():
        expected = case.model.encode_queries(case.model.query_features(inputs))
    for name, value in vars(expected).items():
        assert value is None or torch.allclose(getattr(encoded.state, name), value, atol=1e-6)
    assert list(encoded.is_known) == list(case.model.are_known(inputs))
    is_history = case.name == "history"
    assert encoded.seen == [request["history"] if is_history else [] for request in asked]


def test_a_query_of_another_form_is_refused(case: Case) -> None:
    given = {
        "text": "x",
        "embedding": [1.0],
        "embeddings": {"a": [1.0]},
        "features": {},
        "history": ["x"],
        "user_id": 3,
    }
    takes = [*case.form.fields, *(["embedding"] if case.model.representation_width else [])]
    assert given.keys() == set(QUERY_FIELDS)
    for field in set(given) - set(takes):
        message = rf"queries\[1\] must be given by {' or '.join(takes)} for this index, got {field}"
        with pytest.raises(ValueError, match=message):
            encode(case.model, case.reader, [case.reader.example(), {field: given[field]}])


def test_representations_and_queries_keep_their_order(case: Case) -> None:
    width = case.model.representation_width
    if width is None:
        return
    representation = {"embedding": torch.ones(width).tolist()}
    both = encode(case.model, case.reader, [representation, case.reader.example(), representation])
    for number, alone in enumerate((representation, case.reader.example())):
        own = encode(case.model, case.reader, [alone]).state
        assert torch.allclose(both.state.components[number], own.components[0], atol=1e-6)
    assert torch.equal(both.state.components[2], both.state.components[0])
    assert both.seen[0] == both.seen[2] == []
    for wrong, message in (([1.0] * (width + 1), f"must have {width} numbers"), ([1e39] * width, "numbers up to")):
        with pytest.raises(ValueError, match=rf"queries\[0\]\.embedding {message}|queries\[0\]\.embedding must hold"):
            encode(case.model, case.reader, [{"embedding": wrong}])


def test_each_field_of_a_query_belongs_to_a_form() -> None:
    taken = {name for form in FORMS.values() for name in form.fields}
    assert taken == set(QUERY_FIELDS)
    assert tuple(QueryInput.model_fields)[: len(QUERY_FIELDS)] == QUERY_FIELDS


def test_users_are_asked_about_by_their_id(tmp_path: Path) -> None:
    folder = write_sequence_data(tmp_path, num_items=9)
    form = FORMS["history"]
    corpus, data = form.corpus(Sources(str(folder))), form.read(Sources(str(folder)))
    reader = form.reader(DualEncoderTraining.of(small_history_config()).model(), corpus.files.__getitem__)
    users = dict.fromkeys(pq.read_table(folder / "interactions.parquet")["user_id"].to_pylist())
    rows = reader.read({"user_id": next(iter(users))}, "query")
    assert rows.rows.tolist() == list(data.histories[0])
    assert rows.users.tolist() == data.histories.users[:1].tolist()
    assert reader.seen(rows) == [data.item_ids[row] for row in rows.rows]
    assert reader.read({"history": ["stranger", "item-3"]}, "query").rows.tolist() == [data.item_ids.index("item-3")]
    with pytest.raises(ValueError, match=r"query\.user_id must be a user that the index knows, got 'nobody'"):
        reader.read({"user_id": "nobody"}, "query")
    with pytest.raises(ValueError, match=r"query\.history must hold an item that the index knows, got \['stranger'\]"):
        reader.read({"history": ["stranger"]}, "query")
