"""Items without a direction come last, whatever finds the others."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.data.encoding import encode_items, query_batches
from rails_ray.data.queries import DenseRows, ItemLists, Queries
from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.serve import DualEncoderFamily
from rails_ray.families.items import ByModel
from rails_ray.families.shards import Items
from rails_ray.families.vector_items import quantized
from rails_ray.families.vector_items.storing import FullItems, PqItems
from rails_ray.kernels.top_k import TopK
from rails_ray.modules.encoders.vectors import VectorsConfig
from rails_ray.modules.quantizers.similarity import QuantizedSimilarity
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.faiss_index import IndexConfig
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.spec import SearchResult, SearchSpec
from rails_ray.search.zeros import NO_COSINE, with_zeros_last, zero_rows
from rails_ray.serving.shard_messages import ShardRequest
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage.described import Encoded
from rails_ray.storage.ids import ItemIds
from rails_ray.storage.parquet import StateEntry
from rails_ray.training.evaluation.ranking import rank_all
from support.examples import small_vector_config
from support.faiss_indexes import KINDS, opened

NUM_ITEMS, WIDTH, ZEROS = 40, 8, [0, 7, 8, 39]
ALL = SearchParams(num_candidates=400, num_per_embedding=400, nprobe=6, ef_search=400)


def vectors(num_vectors: int) -> np.ndarray:
    found = np.random.default_rng(0).standard_normal((NUM_ITEMS, num_vectors, WIDTH)).astype(np.float32)
    found[ZEROS] = 0
    found[1, 1:] = 0  # of an item that has another vector
    return found if num_vectors > 1 else found[:, 0]


def config_of(kind: str, index: IndexConfig, items: Any) -> RunConfig:
    made = small_vector_config(kind)
    num_vectors = 3 if kind == "mixture of given" else 1
    width = made.family.components.width if kind in ("mixture", "dot product") else WIDTH
    made = replace(made, data=replace(made.data, zero_vectors="keep"))
    return made.with_family(
        encoder=VectorsConfig(query_width=WIDTH, item_shape=(num_vectors, WIDTH)),
        components=replace(made.family.components, width=width),
        index=index,
        items=items,
    )


def shard_of(kind: str, index: IndexConfig, items: Any) -> tuple[ShardSearch, Any]:
    config = config_of(kind, index, items)
    family = DualEncoderFamily.of(config)
    model = family.model().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "item_components.project.bias":
                parameter.fill_(0.5)  # of training: zeros become a direction unless they are kept apart
    inputs = DenseRows(vectors(3 if kind == "mixture of given" else 1))
    encode, similarity = ByModel(model), model.similarity
    state: Any = encode(range(NUM_ITEMS), inputs)
    if isinstance(items, PqItems):
        quantizer = quantized.quantizer_of(items, state.components, 0)
        similarity = QuantizedSimilarity(similarity, quantizer, None)
        state = quantized.Coded(encode, items, quantizer, None)(range(NUM_ITEMS), inputs)
    elif items.dtype != "float32":
        state = replace(state, components=state.components.half(), average=state.average.half())
    built = {name: opened(index, family.indexed(state, name).float()) for name in family.index_names}
    version: Any = SimpleNamespace(
        similarity=similarity,
        family=family,
        described=Encoded(
            version="v",
            run="r",
            num_items=NUM_ITEMS,
            shard_items=[NUM_ITEMS],
            query={},
            columns={},
            state=StateEntry(kind=state.kind, shapes={}, dtypes={}),
            parts=[],
            files=[],
            cutoff_mass=None,
        ),
        base=lambda number, num: Items(0, ItemIds(range(NUM_ITEMS)), None, state),
        later=lambda number, num: None,
        indexes=lambda number, device: built,
    )
    return ShardSearch(version, 0), model


CASES = [
    *(("cosine", index, FullItems()) for index in KINDS.values()),
    ("cosine", FlatConfig(), FullItems(dtype="float16")),
    ("cosine", FlatConfig(), PqItems(num_subspaces=2, num_codewords=4, has_vectors=True)),
    ("dot product", FlatConfig(), FullItems()),
    ("dot product", KINDS["hnsw fp32"], FullItems()),
    ("mixture", FlatConfig(), FullItems()),
    ("mixture of given", FlatConfig(), FullItems()),
    ("mixture of given", KINDS["ivf sq8"], FullItems()),
]


@pytest.mark.parametrize(("kind", "index", "items"), CASES, ids=str)
def test_every_method_finds_them_last(kind: str, index: IndexConfig, items: Any) -> None:
    shard, model = shard_of(kind, index, items)
    asked = DenseRows(np.random.default_rng(1).standard_normal((3, WIDTH)).astype(np.float32))
    [(_, query)] = query_batches(model, asked)
    for method in shard.searcher.methods:
        found = shard.search(query, ShardRequest(method, ALL, k=NUM_ITEMS), [[], [7], [3]])
        for line, excluded in zip(found.item_ids, ([], [7], [3]), strict=True):
            zeros = [row for row in ZEROS if row not in excluded]
            assert line[-len(zeros) :] == zeros, method
            assert sorted(line) == [row for row in range(NUM_ITEMS) if row not in excluded], method
        assert found.num_searched.tolist() == [NUM_ITEMS, NUM_ITEMS - 1, NUM_ITEMS - 1]
        few = shard.search(query, ShardRequest(method, ALL, k=5), [[], [], []])
        assert not set(ZEROS) & {row for line in few.item_ids for row in line}, method


@pytest.mark.parametrize("kind", ["cosine", "dot product", "mixture", "mixture of given"])
def test_validation_ranks_them_last_too(kind: str) -> None:
    _, model = shard_of(kind, FlatConfig(), FullItems())
    asked = DenseRows(np.random.default_rng(1).standard_normal((4, WIDTH)).astype(np.float32))
    items = encode_items(model, model.item_features(DenseRows(vectors(3 if kind == "mixture of given" else 1))))
    ranking = rank_all(model, items, Queries(asked, ItemLists.of([[row] for row in ZEROS])), NUM_ITEMS)
    assert ranking.best_rank.tolist() == [37, 38, 39, 40]


def test_an_item_with_one_vector_other_than_zeros_has_a_direction() -> None:
    components = torch.zeros(3, 2, 4)
    components[1, 1, 2] = 1e-6
    assert zero_rows(components).tolist() == [0, 2]


@given(st.data())
def test_lists_are_filled_up_as_the_oracle_fills_them(data: st.DataObject) -> None:
    num = data.draw(st.integers(1, 6))
    zeros = sorted(data.draw(st.sets(st.integers(0, num - 1))))
    k = data.draw(st.integers(1, 8))
    at_least = data.draw(st.none() | st.integers(0, k))
    threshold = None if at_least is None else data.draw(st.sampled_from([-torch.inf, NO_COSINE, -1.0, 0.25]))
    excluded = sorted(data.draw(st.sets(st.integers(0, num - 1))))
    of_others = {row: row / 8 for row in range(num) if row not in zeros and row not in excluded}
    of_zeros = {row: NO_COSINE for row in zeros if row not in excluded}

    def best(scores: dict[int, float]) -> tuple[list[int], bool]:
        ordered = sorted(scores, key=lambda row: (-scores[row], row))
        reach = [row for row in ordered if threshold is None or scores[row] >= threshold]
        num_kept = len(reach) if threshold is None else max(len(reach), at_least or 0)
        return ordered[: min(num_kept, k)], len(reach) > k

    rows, is_truncated = best(of_others)
    places = torch.tensor([rows], dtype=torch.int64).reshape(1, -1)
    scores = torch.tensor([[of_others[row] for row in rows]]).reshape(1, -1)
    nothing = torch.tensor([-torch.inf])
    found = SearchResult(scores, places, nothing, torch.tensor([is_truncated]), torch.tensor([num]), [None])
    spec = SearchSpec(k, None if threshold is None else torch.tensor([threshold]), at_least or 0)
    filled = with_zeros_last(found, spec, zeros, [excluded])
    expected, is_expected_truncated = best(of_others | of_zeros)
    assert isinstance(filled, TopK)
    assert filled.item_rows[0, : filled.num_found()[0]].tolist() == expected
    assert filled.is_truncated.tolist() == [is_expected_truncated]
