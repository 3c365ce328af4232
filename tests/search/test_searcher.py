"""How items are made searchable; what every method must hold is in tests/contracts/test_retriever.py."""

from typing import get_args

import pytest
import torch

from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.kernels.lookup_scan import LEAST_BESIDE
from rails_ray.modules.quantizers import random_codes
from rails_ray.modules.similarities.look_up import LookUp
from rails_ray.modules.similarities.states import Codes, Tables
from rails_ray.schema.requests import Method
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.searcher import METHODS, ByCodes, ByComponents
from rails_ray.search.spec import SearchResult, SearchSpec
from support.examples import random_states, small_config, small_mixture
from support.searchers import make_searchable

TEXTS = ["red car", "blue hat"]


def states(num_items: int = 200) -> tuple[LookUp, Tables, Codes]:
    torch.manual_seed(0)
    codes = random_codes.balanced(num_items, 4, 20, 0)
    return LookUp(20), Tables(torch.rand(3, 4, 20), torch.ones(3)), Codes(torch.from_numpy(codes))


def test_items_are_searched_by_what_they_have() -> None:
    similarity, _, codes = states()
    assert isinstance(make_searchable(similarity, codes), ByCodes)
    assert isinstance(make_searchable(small_mixture(), random_states(1, 9)[1]), ByComponents)


def test_a_request_may_name_every_method_and_no_other() -> None:
    assert set(get_args(Method)) == {*METHODS, "gated", "ann", "surrogate", *ByCodes.methods, "lookup", "ivf_lookup"}


@pytest.mark.parametrize(
    ("method", "num_probes"), [("brute_force", None), ("inverted", None), ("inverted", 20), ("inverted", 3)]
)
def test_items_with_codes_are_searched_by_them(method: str, num_probes: int | None) -> None:
    """`inverted` probes all buckets where there are no more than would be probed."""
    similarity, query, items = states()
    params = SearchParams(num_candidates=200, num_probes=num_probes)
    searched = ByCodes(similarity, items).search(query, SearchSpec(5), method, params)
    scores = similarity.scores(query, items)
    best = scores.topk(5, dim=1)
    if num_probes != 3:
        assert torch.equal(searched.item_rows, best.indices)
    assert torch.equal(searched.scores, scores.gather(1, searched.item_rows))


@pytest.mark.parametrize(("num_buckets", "probes"), [(20, 20), (150, 100)])
def test_a_hundred_buckets_are_probed_where_nothing_is_said(num_buckets: int, probes: int) -> None:
    items = Codes(torch.zeros(3, 4, dtype=torch.int32))
    assert ByCodes(LookUp(num_buckets), items).retriever("inverted").num_probes == probes


def test_what_codes_need_is_compiled_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[str, int]]()
    search = ByCodes.search

    def noted(self: ByCodes, query: Tables, spec: SearchSpec, method: str, params: SearchParams) -> SearchResult:
        asked.append((method, len(query)))
        return search(self, query, spec, method, params)

    monkeypatch.setattr(ByCodes, "search", noted)
    similarity, _, items = states()
    ByCodes(similarity, items)
    assert asked == [(method, num) for num in (1, LEAST_BESIDE) for method in ("brute_force", "inverted")]


def test_a_code_that_is_no_bucket() -> None:
    _, _, items = states()
    with pytest.raises(ValueError, match="codes must be below the 19 buckets, got 19"):
        ByCodes(LookUp(19), items)


@pytest.mark.parametrize("method", ["two_pass", "combined", "exact"])
def test_other_ways_to_search_are_not_for_codes(method: str) -> None:
    similarity, _, items = states()
    message = f"method must be one of brute_force, inverted for items that are found by their codes, got '{method}'"
    with pytest.raises(ValueError, match=message):
        ByCodes(similarity, items).retriever(method)


def test_inverted_is_for_codes_alone() -> None:
    model = DualEncoderTraining.of(small_config("dot product")).model().eval()
    items = model.encode_items(model.item_features(TEXTS))
    message = "method must be one of brute_force, .*, combined, ann for items that have components, got 'inverted'"
    with pytest.raises(ValueError, match=message):
        make_searchable(model.similarity, items).retriever("inverted")


def test_a_sum_of_look_ups_has_a_normaliser_too() -> None:
    similarity, query, items = states()
    found = ByCodes(similarity, items).log_sum_exp(query, lambda scores, _: 3 * scores)
    assert torch.allclose(found, (3 * similarity.scores(query, items)).double().logsumexp(dim=1))
