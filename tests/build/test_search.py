import pytest
import torch

from rails_ray.build import search as search_building
from rails_ray.build.dual_encoder import DualEncoderFamily
from rails_ray.quantizers import random_codes
from rails_ray.similarities.look_up import LookUp
from rails_ray.similarities.states import Codes, Tables
from support.examples import small_config

TEXTS = ["red car", "blue hat"]


def states(num_items: int = 200) -> tuple[LookUp, Tables, Codes]:
    torch.manual_seed(0)
    codes = random_codes.balanced(num_items, 4, 20, 0)
    return LookUp(20), Tables(torch.rand(3, 4, 20), torch.ones(3)), Codes(torch.from_numpy(codes))


@pytest.mark.parametrize(
    ("method", "num_probes"), [("brute_force", None), ("inverted", None), ("inverted", 20), ("inverted", 3)]
)
def test_items_with_codes_are_searched_by_them(method: str, num_probes: int | None) -> None:
    """`inverted` probes all buckets where there are no more than would be probed."""
    similarity, query, items = states()
    searched = search_building.retriever(method, similarity, items, 200, 1, num_probes).search(query, 5).top_k
    scores = similarity.scores(query, items)
    best = scores.topk(5, dim=1)
    if num_probes != 3:
        assert torch.equal(searched.item_rows, best.indices)
    assert torch.equal(searched.scores, scores.gather(1, searched.item_rows))


@pytest.mark.parametrize(("num_buckets", "probes"), [(20, 20), (150, 100)])
def test_a_hundred_buckets_are_probed_where_nothing_is_said(num_buckets: int, probes: int) -> None:
    items = Codes(torch.zeros(3, 4, dtype=torch.int32))
    assert search_building.retriever("inverted", LookUp(num_buckets), items, 3, 1).num_probes == probes


@pytest.mark.parametrize("method", ["brute_force", "inverted"])
def test_indexes_that_were_made_once_answer_alike(method: str) -> None:
    similarity, query, items = states()
    indexes = search_building.code_indexes(similarity, items)
    assert indexes is not None
    found = [
        search_building.retriever(method, similarity, items, 50, 1, 3, of).search(query, 5).top_k
        for of in (indexes, None)
    ]
    assert torch.equal(found[0].item_rows, found[1].item_rows)
    assert torch.equal(found[0].scores, found[1].scores)


def test_a_code_that_is_no_bucket() -> None:
    _, _, items = states()
    with pytest.raises(ValueError, match="codes must be below the 19 buckets, got 19"):
        search_building.code_indexes(LookUp(19), items)


@pytest.mark.parametrize("method", ["two_pass", "combined", "exact"])
def test_other_ways_to_search_are_not_for_codes(method: str) -> None:
    similarity, _, items = states()
    message = f"method must be one of brute_force, inverted for items that are found by their codes, got '{method}'"
    with pytest.raises(ValueError, match=message):
        search_building.retriever(method, similarity, items, 200, 1)


def test_inverted_is_for_codes_alone() -> None:
    model = DualEncoderFamily.of(small_config("dot product")).model().eval()
    items = model.encode_items(model.item_features(TEXTS))
    message = "method must be one of brute_force, .*, combined for items that have components, got 'inverted'"
    with pytest.raises(ValueError, match=message):
        search_building.retriever("inverted", model.similarity, items, 2, 2)
    assert search_building.code_indexes(model.similarity, items) is None
