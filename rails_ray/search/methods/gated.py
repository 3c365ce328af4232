"""The mixture at the price of an average: candidates by one inner product, of weights that a query's own items fit.

Near a query's best items its score is close to a linear function of their cosines, and a linear function of cosines is
one inner product with the stored components, flattened:

    score(q, x) ~ sum_p a_p(q) c_p(q, x) + a constant,          c_p = <f_pq(q), g_px(x)>
    h_px(q) = sum_pq a_p(q) f_pq(q)     so that     sum_p a_p(q) c_p(q, x) = sum_px <h_px(q), g_px(x)>

Each of R rounds scores its share of `num_candidates`: the first the best by average, a = 1/P; any other the best that
are left by `a`, fitted to all items that were scored before it. No training, no bytes beside the index.

    a = 1/P + argmin_e sum_i w_i (s_i - mean s - <1/P + e, c_i - mean c>)^2 + lambda sum_p var_p e_p^2
    w_i = 1 / (1 + r_i / (n / 8)), to the sum of 1; the n items so far have ranks r_i = 0, 1, .. by score; means and
    variances are weighted by w

Source: ours; local regression, in rounds as AXN's (RBE).
Differs from its first form, a = sum_i softmax(s_i / tau) pi(q, x_i), the mean of the first items' gates: a gate rises
with its own cosine, which mean gates leave out and the fit reads. It needs scores alone, no gates and no tau, and finds
far more on trained models (`docs/log/search.md`).

Axes: B queries, X items, C candidates, W listed items, P_Q / P_X components, P = P_Q * P_X, d width of a component.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rails_ray.kernels.top_k import NO_ROW
from rails_ray.modules.similarities import Scorer
from rails_ray.modules.similarities.states import ItemState, QueryState, Searched, take
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.candidates import ByAverage
from rails_ray.search.checks import OF_K, check_items, check_query, check_width
from rails_ray.search.indexes import VectorIndex
from rails_ray.search.masks import Mask
from rails_ray.search.rescore import candidate_blocks
from rails_ray.search.scan import Scan
from rails_ray.search.spec import SearchResult, SearchSpec, reasons_of
from rails_ray.stopwatch import part

RIDGE = 0.1  # lambda; .03 and .3 find as much, but for .02 on one trained model (LOG)
NEAR = 8  # one scored item in so many weighs at least half of the best
LEAST_DEVIATION = 1e-5  # of a pair's cosines: items that differ by less do so by rounding, as those of one code
NO_CERTIFICATE = "candidates by a linear fit to scores: an item that it leaves out may lie above the fit"


class ScoredItems(NamedTuple):
    """
    item_rows, is_there: items of each query, each once, and which places hold one.
    scores: -inf at places that hold none.
    cosines: of all pairs of components.
    """

    item_rows: Int[Tensor, "B C"]
    is_there: Bool[Tensor, "B C"]
    scores: Float[Tensor, "B C"]
    cosines: Float[Tensor, "B C P"]


class Gated:
    """Search by weights that are fitted, round by round, to the scores of a query's own items.

    Args:
        together: an index of all components of an item, one after the other.
        first: gives the first round's items; None for the best by all components, weighted alike.
        num_candidates: items to score in all.
        num_rounds: at least 2.
        params: how much of its index `first` looks at.
    """

    is_exact = False

    def __init__(
        self,
        similarity: Scorer,
        items: Searched,
        together: VectorIndex,
        first: ByAverage | None,
        num_candidates: int,
        num_rounds: int,
        params: SearchParams | None = None,
    ) -> None:
        check_items(similarity, items)
        self.similarity = similarity
        self.items = items
        self.together = together
        self.first = first
        self.num_candidates = num_candidates
        self.num_rounds = num_rounds
        self.params = params

    def search(self, query: QueryState, spec: SearchSpec) -> SearchResult:
        """The contract of `Retriever`. It scores `num_candidates` items, or as many as are wanted whatever their
        scores, if these are more.

        Raises:
            ValueError: also if `num_candidates` is below k.
        """
        check_query(query, self.similarity, self.items)
        spec.check_queries(len(query))
        num_left = spec.num_left(len(query), len(self.items), query.components.device)
        if spec.threshold is None and len(query):
            least = min(spec.k, len(self.items))
            check_width("num_candidates", self.num_candidates, least, OF_K)
        scored = self.scored(query, max(self.num_candidates, spec.least), spec.mask)
        running = Scan(replace(spec, mask=None))
        item_rows, order = scored.item_rows.sort(dim=1)  # as a scan takes them
        running.add(0, scored.scores.gather(1, order))
        is_all = scored.is_there.sum(dim=1) == num_left
        bound = torch.full_like(num_left, torch.inf, dtype=torch.float32).masked_fill(is_all, -torch.inf)
        num_scored = (scored.scores > -torch.inf).sum(dim=1)
        reasons = reasons_of(bound, NO_CERTIFICATE)
        return running.found(num_scored, num_left, bound=bound, reasons=reasons, item_rows=item_rows)

    def scored(self, query: QueryState, num: int, mask: Mask | None = None) -> ScoredItems:
        """`num` items of each query, or all that there are."""
        num_pairs = math.prod(self.similarity.num_components)
        nothing = query.components.new_empty(len(query), 0)
        so_far = ScoredItems(
            nothing.long(), nothing.bool(), nothing, query.components.new_empty(len(query), 0, num_pairs)
        )
        num = max(min(num, len(self.items)), 1)
        for number in range(1, self.num_rounds + 1):
            width = -(-num * number // self.num_rounds)
            new = self._score(query, *self._next(query, so_far, width, mask))
            so_far = ScoredItems(*(torch.cat(both, dim=1) for both in zip(so_far, new, strict=True)))
        return so_far

    def _next(
        self, query: QueryState, so_far: ScoredItems, width: int, mask: Mask | None
    ) -> tuple[Int[Tensor, "B _"], Bool[Tensor, "B _"]]:
        """The best items that are not yet scored, so many that each query has `width` in all."""
        if self.first is not None and not so_far.item_rows.shape[1]:
            found = self.first(query, width, mask, self.params)
            return found.item_rows, found.is_there
        vectors = weighted(query, fitted(so_far.cosines, so_far.scores))
        listed = self.together.search(vectors, SearchSpec(width, at_least=width, mask=mask))
        is_new = (listed.scores > -torch.inf) & ~among(listed.item_rows, so_far.item_rows, so_far.is_there)
        place = is_new.cumsum(dim=1) - 1
        is_new &= place < (width - so_far.is_there.sum(dim=1))[:, None]
        longest = int(is_new.sum(dim=1).max()) if len(is_new) else 0
        item_rows = listed.item_rows.new_zeros(len(query), longest)
        is_there = torch.zeros_like(item_rows, dtype=torch.bool)
        line, column = is_new.nonzero(as_tuple=True)
        item_rows[line, place[line, column]] = listed.item_rows[line, column]
        is_there[line, place[line, column]] = True
        return item_rows, is_there

    @part("score")
    def _score(self, query: QueryState, item_rows: Int[Tensor, "B C"], is_there: Bool[Tensor, "B C"]) -> ScoredItems:
        scores, cosines = [], []
        for block, items in candidate_blocks(self.similarity, self.items, item_rows):
            own = take(query, block)
            scores.append(self.similarity.scores(own, items))
            cosines.append(pair_cosines(own, items))
        return ScoredItems(
            item_rows, is_there, torch.cat(scores).masked_fill(~is_there, -torch.inf), torch.cat(cosines)
        )


def fitted(cosines: Float[Tensor, "B C P"], scores: Float[Tensor, "B C"]) -> Float[Tensor, "B P"]:
    """a(q), from scored items; 1/P where there are none, and for pairs whose cosines are equal but for rounding. Items
    without a finite score count as none."""
    num_pairs = cosines.shape[2]
    is_there = scores.isfinite()
    order = scores.masked_fill(~is_there, -torch.inf).argsort(dim=1, descending=True, stable=True)
    ranks = torch.empty_like(order)
    ranks.scatter_(1, order, torch.arange(order.shape[1], device=order.device).expand_as(order))
    weights = is_there / (1 + NEAR * ranks / is_there.sum(dim=1, keepdim=True).clamp(min=1))
    weights = (weights / weights.sum(dim=1, keepdim=True).clamp(min=1))[:, :, None]  # [B, C, 1]
    cosines = cosines.masked_fill(~is_there[:, :, None], 0)
    left = (scores - cosines.mean(dim=2)).masked_fill(~is_there, 0)[:, :, None]  # of the scores, by the average
    left = left - (weights * left).sum(dim=1, keepdim=True)
    cosines = cosines - (weights * cosines).sum(dim=1, keepdim=True)
    deviations = (weights * cosines.square()).sum(dim=1, keepdim=True).sqrt()
    says_nothing = deviations < LEAST_DEVIATION
    deviations = deviations.masked_fill(says_nothing, 1)
    cosines = (cosines / deviations).masked_fill(says_nothing, 0)
    weighted_cosines = (weights * cosines).transpose(1, 2)  # [B, P, C]
    ridge = RIDGE * torch.eye(num_pairs, dtype=cosines.dtype, device=cosines.device)
    slopes = torch.linalg.solve(weighted_cosines @ cosines + ridge, weighted_cosines @ left)  # [B, P, 1]
    weights_of_pairs: Tensor = 1 / num_pairs + slopes[:, :, 0] / deviations[:, 0]
    return weights_of_pairs


def weighted(query: QueryState, weights: Float[Tensor, "B P"]) -> Float[Tensor, "B _"]:
    """h(q), its P_X vectors one after the other."""
    of_pairs = weights.unflatten(1, (query.components.shape[1], -1))  # [B, P_Q, P_X]
    vectors: Tensor = of_pairs.transpose(1, 2) @ query.components  # [B, P_X, d]
    return vectors.flatten(start_dim=1)


def pair_cosines(query: QueryState, items: ItemState) -> Float[Tensor, "B C P"]:
    """c_p of each query's own candidates."""
    components = items.components.to(query.components.dtype)
    products: Tensor = components.flatten(1, 2) @ query.components.transpose(1, 2)  # [B, C * P_X, P_Q]
    cosines: Tensor = products.unflatten(1, components.shape[1:3]).transpose(2, 3)  # [B, C, P_Q, P_X]
    return cosines.flatten(start_dim=2)


def among(
    item_rows: Int[Tensor, "B W"], others: Int[Tensor, "B C"], is_there: Bool[Tensor, "B C"]
) -> Bool[Tensor, "B W"]:
    """Which rows are among `others` of their query."""
    last = others.new_full((len(others), 1), NO_ROW)
    others = torch.cat([others.masked_fill(~is_there, NO_ROW).sort(dim=1).values, last], dim=1)
    is_among: Tensor = others.gather(1, torch.searchsorted(others, item_rows)) == item_rows
    return is_among
