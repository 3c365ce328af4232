import pytest
import torch

from rails_ray.search.masks import Exclusions
from rails_ray.search.spec import SearchResult, SearchSpec, gap_to

INFINITY = float("inf")


def found(
    scores: list[float], bound: float = -INFINITY, is_truncated: bool = False, reason: str | None = None
) -> SearchResult:
    line = torch.tensor([scores])
    rows = torch.arange(len(scores)).masked_fill(line == -INFINITY, 0)
    return SearchResult(line, rows, torch.tensor([bound]), torch.tensor([is_truncated]), torch.tensor([3]), [reason])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"k": 5, "at_least": 6}, "at_least must be at least 0 and at most the k of 5, got 6"),
        ({"k": 5, "at_least": -1}, "at_least must be at least 0 and at most the k of 5, got -1"),
        ({"k": 5, "threshold": torch.tensor([0.0, -1.0, torch.nan])}, "threshold must not be NaN, got NaN for query 2"),
    ],
)
def test_what_cannot_be_wanted(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SearchSpec(**arguments)


def test_a_threshold_for_each_query() -> None:
    spec = SearchSpec(5, torch.zeros(2))
    spec.check_queries(2)
    with pytest.raises(ValueError, match="threshold must be one number for each of 3 queries, got 2"):
        spec.check_queries(3)
    SearchSpec(5).check_queries(3)


def test_the_k_best_are_wanted_whatever_their_scores() -> None:
    assert SearchSpec(5).least == 5
    assert SearchSpec(5, torch.zeros(1), at_least=2).least == 2


def test_of_some_queries() -> None:
    own = SearchSpec(5, torch.tensor([0.1, 0.2, 0.3]), 2, Exclusions.of([[1], [2], [3, 4]])).of_queries(
        torch.tensor([1, 2])
    )
    assert own.threshold.tolist() == pytest.approx([0.2, 0.3])
    assert own.mask.pairs.tolist() == [[0, 2], [1, 3], [1, 4]]
    assert own.num_left(2, 4).tolist() == [3, 3]
    assert SearchSpec(5).of_queries(torch.tensor([0])) == SearchSpec(5)
    assert SearchSpec(5).num_left(2, 4).tolist() == [4, 4]


@pytest.mark.parametrize(
    ("one", "spec", "gap"),
    [
        (found([0.9, 0.5]), SearchSpec(2), 0),  # all were scored
        (found([0.9, 0.5], 0.5), SearchSpec(2), 0),
        (found([0.9, 0.5], 0.75), SearchSpec(2), 0.25),
        (found([0.9, 0.5]), SearchSpec(3), 0),  # a list that is short, but nothing was passed over
        (found([0.9, -INFINITY], 0.25), SearchSpec(2), INFINITY),
        (found([0.9, 0.5], INFINITY, reason="nobody looked"), SearchSpec(2), INFINITY),
        (found([0.9, 0.5], 0.75), SearchSpec(5, torch.tensor([0.5])), 0.25),
        (found([0.9, 0.75], 0.75), SearchSpec(5, torch.tensor([0.5])), 0.25),  # what is missing had to reach .5
        (
            found([0.9, 0.75], 0.75, is_truncated=True),
            SearchSpec(2, torch.tensor([0.5])),
            0,
        ),  # or to be among the two best
        (found([], 0.75), SearchSpec(2, torch.tensor([0.5])), 0.25),
        (found([], 0.75), SearchSpec(2, torch.tensor([0.8])), 0),
        (found([0.5], 0.25), SearchSpec(2, torch.tensor([0.9]), 1), 0),
        (found([0.5], 0.25), SearchSpec(2, torch.tensor([0.9]), 2), INFINITY),
    ],
)
def test_how_much_better_a_missing_item_can_be(one: SearchResult, spec: SearchSpec, gap: float) -> None:
    assert one.gap(spec).tolist() == [gap]


def test_a_gap_is_never_nan() -> None:
    """What had to be reached is -inf where a list is short, and inf where nothing can belong to it."""
    bound, reached = torch.tensor([-torch.inf, 0.5, torch.inf]), torch.tensor([-torch.inf, 0.0, torch.inf])
    gaps = gap_to(bound[:, None].expand(3, 3).flatten(), reached.expand(3, 3).flatten())
    assert gaps.view(3, 3).tolist() == [[0, 0, 0], [torch.inf, 0.5, 0], [torch.inf, torch.inf, 0]]
