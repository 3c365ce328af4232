"""What only items with terms have; all else is in `contracts/test_retriever.py`."""

from dataclasses import replace

import pytest
import torch

from rails_ray.errors import UnsupportedError
from rails_ray.modules.losses.beta_nce import beta_logit
from rails_ray.modules.similarities.bm25 import NO_TERM, Bm25, TermCounts, TermWeights
from rails_ray.modules.similarities.states import take
from rails_ray.search.masks import Exclusions
from rails_ray.search.methods.bm25 import ByTerms
from rails_ray.search.spec import SearchSpec
from support.of_terms import LONGEST_QUERY, random_terms, sums


def test_a_softmax_over_items_is_refused() -> None:
    query, items = random_terms(2, 5)
    with pytest.raises(UnsupportedError, match="needs a model that was trained by one, got BM25"):
        ByTerms(Bm25(), items).log_sum_exp(query, beta_logit)


def test_items_that_share_nothing_come_last_by_row() -> None:
    items = TermWeights(torch.tensor([[1], [2], [NO_TERM], [2]]), torch.tensor([[1.0], [0.5], [0.0], [2.0]]))
    query = TermCounts(torch.tensor([[2], [9]]), torch.ones(2, 1), torch.ones(2))
    searcher = ByTerms(Bm25(), items)
    found = searcher.search(query, SearchSpec(4))
    assert found.item_rows.tolist() == [[3, 1, 0, 2], [0, 1, 2, 3]]
    assert found.scores.tolist() == [[2.0, 0.5, 0.0, 0.0], [0.0] * 4]
    above = searcher.search(query, SearchSpec(4, torch.tensor([1e-9, 1e-9]), mask=Exclusions.of([[3], []])))
    assert above.num_found().tolist() == [1, 0]


def test_one_item() -> None:
    query, items = random_terms(3, 1)
    found = ByTerms(Bm25(), items).search(query, SearchSpec(5))
    assert found.num_found().tolist() == [1, 1, 1]
    assert found.scores[:, :1].tolist() == sums(query, items)


def test_explanations_are_of_terms() -> None:
    query, items = random_terms(3, 20)
    explained = ByTerms(Bm25(), items).explain(query, [4, 4, 17])
    assert explained.cosines.shape == explained.gates.shape == (3, 3, 1, LONGEST_QUERY)
    assert torch.equal(explained.scores, Bm25().scores(query, take(items, [4, 4, 17])))
    assert torch.allclose(explained.gates.sum(dim=(2, 3)), torch.ones(3, 3))
    assert torch.allclose((explained.gates * explained.cosines).sum(dim=(2, 3)), explained.scores, atol=1e-6)


def test_nothing_to_explain() -> None:
    query, items = random_terms(2, 3)
    assert ByTerms(Bm25(), items).explain(query, []).scores.shape == (2, 0)


def test_a_gpu_hides_what_a_filter_leaves_out() -> None:
    _, items = random_terms(1, 100)
    searcher = ByTerms(Bm25(), items)
    assert searcher.gathers(1, 1)
    searcher.postings = replace(searcher.postings, weights=searcher.postings.weights.to("meta"))
    assert not searcher.gathers(1, 1)
