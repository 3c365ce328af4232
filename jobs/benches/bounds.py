"""How many more items than the largest cosine does a bound prune that reads the gate too?

    score = sum_p e^{s_p} c_p / sum_p e^{s_p},    s_p = silu(u_p v_p + w_p(c)),    c known before w is computed

With w_p in [low_p, high_p], s_p is in an interval too, and the score is largest where the gates of the largest cosines
are as large as they may be, and all others as small: of the P + 1 ways to cut the cosines in descending order, one is
the best. Bounds, by what they take low and high from:

    largest     nothing: the largest cosine, as the product does it
    weights     the weights: the interval of each layer, for cosines in [-1, 1]; proved
    queries     the same, for cosines between the least and the most that the query has with any item; proved
    seen        the least and the most of w over all pairs that are scored; no proof, and better than any constant bound
    score       the score itself: what no bound can exceed

Share of the items whose bound lies below the k-th best score of their query (the floor at the end of a scan), k = 10
and 100, over held-out queries, by the trained models that `gates` keeps and, with `--state`, by the mixtures that
`quality` has trained there; and nanoseconds a pair of query and item of the bound and of the whole score, as plain
torch computes both in one thread.

    python -m jobs.benches.bounds [--kept FOLDER] [--steps 400] [--queries 200] [--state FOLDER] [--data FOLDER]

A yes: a proved bound that saves more time of gates, beyond the largest cosine, than it takes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import tyro
from jaxtyping import Float
from torch import Tensor

from jobs.benches import quality
from jobs.benches.gates import ACTIVATIONS, SIZES, Size, config_of, emoji, quiet
from jobs.benches.pebr_models import kept_model
from jobs.benches.quality_rows import NAME as QUALITY
from jobs.benches.record import Record, recorded
from rails_ray.data.encoding import encode_items, query_batches
from rails_ray.kernels.mol_scan import ACTIVATIONS as FUNCTIONS
from rails_ray.kernels.mol_scan import Gate
from rails_ray.modules.similarities.mol import MixtureOfLogits

BATCH = 10
LEAST = -1.2784645  # where silu is smallest, -0.2784645; it rises above, and falls below
LOWEST = -0.2784645
Interval = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Bounds:
    """Options.

    Args:
        sizes: of the emoji's models.
        state: of `quality`, whose mixtures are measured too.
        data: folder with their data sets.
    """

    sizes: tuple[Size, ...] = ("recipe", "wide")
    seeds: tuple[int, ...] = (0,)
    steps: int = 400
    queries: int = 200
    kept: Path = Path("/tmp/rails-ray-gates")
    state: Path | None = None
    data: Path = Path("../shared/data")


def through(weight: Float[Tensor, "M N"], bias: Float[Tensor, " M"], low: Tensor, high: Tensor) -> Interval:
    """The interval of a linear layer whose inputs are in one [N]."""
    up, down = weight.clamp(min=0), weight.clamp(max=0)
    return up @ low + down @ high + bias, up @ high + down @ low + bias


def activated(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Interval:
    """The interval of silu or relu."""
    ends = function(low), function(high)
    least = torch.minimum(*ends)
    if function is F.silu:
        least = torch.where((low <= LEAST) & (high >= LEAST), LOWEST, least)
    return least, torch.maximum(*ends)


def of_weights(gate: Gate, low: Float[Tensor, " P"], high: Float[Tensor, " P"]) -> Interval:
    """The interval of w for all cosines in an interval [P]."""
    hidden = through(gate.first / gate.temperature, gate.first_bias, low, high)
    return through(gate.second, gate.second_bias, *activated(FUNCTIONS[gate.activation], *hidden))


def of_queries(gate: Gate, cosines: Float[Tensor, "B X P"]) -> Interval:
    """The interval of w for the cosines that each query has with any item [B, 1, P]."""
    each = [of_weights(gate, own.amin(dim=0), own.amax(dim=0)) for own in cosines]
    low, high = (torch.stack(ends)[:, None] for ends in zip(*each, strict=True))
    return low, high


def bound(cosines: Float[Tensor, "B X P"], offsets: Float[Tensor, "B X P"], low: Tensor, high: Tensor) -> Tensor:
    """The largest score that gates in their intervals can give [B, X]."""
    least, most = activated(F.silu, offsets + low, offsets + high)
    largest = most.amax(dim=-1, keepdim=True)  # or wide intervals would overflow
    cosines, order = cosines.sort(dim=-1, descending=True)
    least, most = ((own - largest).double().gather(-1, order).exp() for own in (least, most))
    none = torch.zeros_like(cosines[..., :1])

    def cut(values: Tensor, others: Tensor) -> Tensor:
        """Sums of the first j of `values` and the rest of `others`, j = 0 .. P [B, X, P + 1]."""
        rest = others.sum(dim=-1, keepdim=True) - torch.cat([none, others.cumsum(dim=-1)], dim=-1)
        return torch.cat([none, values.cumsum(dim=-1)], dim=-1) + rest

    # Without a gate at its most (j = 0) the score is not larger than with the first one there, and may be 0 / 0.
    return (cut(most * cosines, least * cosines) / cut(most, least))[..., 1:].amax(dim=-1).float()


@torch.no_grad()
def measured(model: Any, data: Any, num_queries: int) -> list[dict[str, Any]]:
    """A row for each bound."""
    similarity = model.similarity
    assert isinstance(similarity, MixtureOfLogits)
    gate = similarity.gate_weights()
    items = encode_items(model, model.item_features(data.item_inputs))
    shares: dict[tuple[str, int], list[Tensor]] = {}
    took = dict.fromkeys(("largest", "weights", "queries", "score"), 0.0)
    batches = [state for _, state in query_batches(model, data.queries["test"].head(num_queries).inputs, BATCH)]
    seen: Interval | None = None
    kept = []
    for query in batches:
        cosines = torch.einsum("bqd,xpd->bxqp", query.components, items.components).flatten(2)
        began = time.perf_counter()
        w = F.linear(
            FUNCTIONS[gate.activation](F.linear(cosines / gate.temperature, gate.first, gate.first_bias)),
            gate.second,
            gate.second_bias,
        )
        offsets = query.gate[:, None] * items.gate
        scores = (F.softmax(F.silu(offsets + w), dim=-1) * cosines).sum(dim=-1)
        took["score"] += time.perf_counter() - began
        own = w.flatten(0, 1)
        ends = own.amin(dim=0), own.amax(dim=0)
        seen = ends if seen is None else (torch.minimum(seen[0], ends[0]), torch.maximum(seen[1], ends[1]))
        kept.append((cosines, offsets, scores))
    assert seen is not None
    ones = torch.ones(gate.first.shape[1])
    intervals = {"weights": of_weights(gate, -ones, ones), "seen": seen}
    for cosines, offsets, scores in kept:
        began = time.perf_counter()
        intervals["queries"] = of_queries(gate, cosines)
        took["queries"] += time.perf_counter() - began
        began = time.perf_counter()
        upper = {"largest": cosines.amax(dim=-1)}
        took["largest"] += time.perf_counter() - began
        for name, interval in intervals.items():
            began = time.perf_counter()
            upper[name] = bound(cosines, offsets, *interval)
            took[name] = took.get(name, 0.0) + time.perf_counter() - began
            assert (upper[name] >= scores - 1e-4).all(), f"{name} must be a bound"
        for k in (10, 100):
            floor = scores.topk(k, dim=1).values[:, -1:]
            for name, values in (*upper.items(), ("score", scores)):
                shares.setdefault((name, k), []).append((values < floor).double().mean(dim=1))
    pairs = sum(len(query) for query in batches) * len(items)
    width = {name: float((high - low).mean()) for name, (low, high) in intervals.items()}
    return [
        {"bound": name, "k": k, "pruned": float(torch.cat(own).mean()), "ns_a_pair": 1e9 * took[name] / pairs,
         "width_of_w": width.get(name)}
        for (name, k), own in shares.items()
    ]  # fmt: skip


def main(options: Bounds) -> None:
    torch.set_num_threads(1)
    record, data = Record("bounds"), emoji()
    for size in options.sizes:
        assert size in SIZES
        for seed in options.seeds:
            for activation in ACTIVATIONS:
                model = kept_model(config_of(size, activation, seed, options.steps), data, options.kept, quiet)
                for row in measured(model, data, options.queries):
                    record.row(size=size, activation=activation, seed=seed, steps=options.steps, **row)
                    print(size, activation, seed, row, flush=True)
    if options.state is None:
        return
    for end in recorded(QUALITY):
        is_mixture = end.get("kind") == "cell" and end["similarity"] == "mol" and "run" in end
        if is_mixture and (kept := quality.kept_model(end, options.state, options.data)):
            model, data = kept
            for row in measured(model, data, options.queries):
                record.row(run=end["run"], activation=model.similarity.gate_weights().activation, **row)
                print(end["run"], row, flush=True)


if __name__ == "__main__":
    main(tyro.cli(Bounds))
