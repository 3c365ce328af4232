"""How many items can vectors of so many numbers tell apart, if any two of them may be what a query wants?

For n items there are n (n - 1) / 2 queries, one for each pair, whose two best items must be that pair. Nothing is
encoded: the numbers of each query and each item are free, and trained until every query has its pair, or for
`--num-steps`. The largest n that one of `--num-seeds` random initialisations reaches is found by doubling and halving,
a lower bound of what the numbers could tell apart.

    dot             one unit vector of D numbers, score: their cosine
    mol RxR         R components of D / R numbers each, a gate that reads the R x R cosines
    mol RxR gated   R components of (D - R^2) / R numbers each, and R^2 numbers for the gate

so that each item, and each query, has D numbers in all. The two layers that read cosines belong to no item.

    python -m jobs.benches.limit [--widths 4 8 12 16 24]     cells that are recorded with these settings are left out
    python -m jobs.plots.limit

Source: Weller et al., On the Theoretical Limitations of Embedding-Based Retrieval (arXiv 2508.21038), Section 4, where
free vectors under a dot product have their limit; it has no mixture.
Differs from the source: vectors have length 1 and logits a temperature, as our dot products have.

Axes: B queries, X items, D numbers of each.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import tyro
from jaxtyping import Bool, Float
from torch import Tensor, nn

from jobs.benches.record import Record, recorded
from rails_ray.kernels.unit import unit
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.mol import GateInput, MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.modules.similarities.states import ItemState, QueryState

NAME = "limit"
TEMPERATURE = 0.05
GATE_HIDDEN = 32
LOOK_EVERY = 50  # steps


@dataclass(frozen=True)
class Kind:
    """A similarity of D numbers.

    side: R, components of a query and of an item; 1 for a dot product.
    has_gate: whether some of the numbers are read by the gate.
    """

    side: int
    has_gate: bool = False

    @property
    def name(self) -> str:
        return f"mol {self.side}x{self.side}{' gated' * self.has_gate}" if self.side > 1 else "dot"

    def width(self, num_numbers: int) -> int:
        """Numbers of a component; below 2 if there are too few."""
        return (num_numbers - self.side**2 * self.has_gate) // self.side

    def similarity(self) -> DotProduct | MixtureOfLogits:
        """A similarity with its initial weights."""
        if self.side == 1:
            return DotProduct(DotProductConfig(temperature=TEMPERATURE))
        inputs: tuple[GateInput, ...] = ("query", "item", "logits") if self.has_gate else ("logits",)
        config = MixtureOfLogitsConfig(
            num_query_components=self.side,
            num_item_components=self.side,
            temperature=TEMPERATURE,
            gate_hidden=GATE_HIDDEN,
            logit_dropout=0.0,
            gate_dropout=0.0,
            gate_inputs=inputs,
        )
        return MixtureOfLogits(config)


KINDS = (Kind(1), Kind(2), Kind(2, has_gate=True), Kind(4), Kind(4, has_gate=True))


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """
    widths: D, numbers of a query and of an item.
    num_steps: steps after which a training has failed.
    num_seeds: random initialisations that are tried before a number of items counts as too large.
    most: number of items at which the search ends.
    """

    widths: tuple[int, ...] = (4, 8, 12, 16, 24)
    num_steps: int = 3000
    num_seeds: int = 2
    most: int = 200

    @property
    def settings(self) -> dict[str, int]:
        """Options that a cell's result depends on, by name."""
        return {"num_steps": self.num_steps, "num_seeds": self.num_seeds, "most": self.most}


class Free(nn.Module):
    """Queries and items whose numbers are all free.

    Args:
        num_queries: B.
        num_items: X.
        num_numbers: D.
    """

    def __init__(self, kind: Kind, num_queries: int, num_items: int, num_numbers: int) -> None:
        super().__init__()
        self.kind, self.similarity = kind, kind.similarity()
        width, num_pairs = kind.width(num_numbers), kind.side**2
        self.queries = nn.Parameter(torch.randn(num_queries, kind.side, width))
        self.items = nn.Parameter(torch.randn(num_items, kind.side, width))
        self.query_gate = nn.Parameter(torch.randn(num_queries, num_pairs), requires_grad=kind.has_gate)
        self.item_gate = nn.Parameter(torch.randn(num_items, num_pairs), requires_grad=kind.has_gate)
        if not kind.has_gate:
            nn.init.ones_(self.query_gate)
            nn.init.zeros_(self.item_gate)

    def forward(self) -> Float[Tensor, "B X"]:
        """Logits of all queries and items."""
        temperature = torch.ones(len(self.queries))
        query = QueryState(unit(self.queries), self.query_gate, temperature)
        items = ItemState(unit(self.items), self.item_gate, average=None)
        scores: Tensor = self.similarity.training_scores(query, items)
        return scores / TEMPERATURE


def main(arguments: Arguments) -> None:
    torch.set_num_threads(1)
    record, settings = Record(NAME), arguments.settings
    for num_numbers, kind in itertools.product(arguments.widths, KINDS):
        if kind.width(num_numbers) < 2:
            print(f"{kind.name}, {num_numbers} numbers: left out, as a component would have fewer than 2", flush=True)
    for num_numbers, kind in left(arguments):
        began = time.monotonic()
        found = largest(partial(is_reached, kind, num_numbers, arguments=arguments), arguments.most)
        seconds = time.monotonic() - began
        record.row(kind=kind.name, num_numbers=num_numbers, largest=found, **settings, seconds=seconds)
        print(f"{kind.name}, {num_numbers} numbers: all pairs of {found} items ({seconds:.0f} s)", flush=True)


def left(arguments: Arguments) -> list[tuple[int, Kind]]:
    """The cells that are not recorded with these settings: D, and a similarity of components of 2 numbers at least."""
    done = [row for row in recorded(NAME) if arguments.settings.items() <= row.items()]
    places = {(row["num_numbers"], row["kind"]) for row in done}
    cells = itertools.product(arguments.widths, KINDS)
    return [cell for cell in cells if cell[1].width(cell[0]) >= 2 and (cell[0], cell[1].name) not in places]


def largest(is_reached: Callable[[int], bool], most: int) -> int:
    """The largest n of 2 to `most` that is reached, if all below it are reached too."""
    reached, failed = 2, most + 1
    step = 2
    while reached + 1 < failed:
        tried = min(reached + step, failed - 1) if failed > most else (reached + failed) // 2
        if is_reached(tried):
            reached, step = tried, 2 * step
        else:
            failed = tried
    return reached


def is_reached(kind: Kind, num_numbers: int, num_items: int, *, arguments: Arguments) -> bool:
    """Try to train numbers by which each pair of items has a query whose two best items they are."""
    return any(_is_trained(kind, num_numbers, num_items, seed, arguments) for seed in range(arguments.num_seeds))


def _is_trained(kind: Kind, num_numbers: int, num_items: int, seed: int, arguments: Arguments) -> bool:
    torch.manual_seed(seed)
    is_wanted = pairs_of(num_items)
    model = Free(kind, len(is_wanted), num_items, num_numbers)
    optimiser = torch.optim.Adam([own for own in model.parameters() if own.requires_grad], lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, arguments.num_steps)
    for step in range(arguments.num_steps):
        logits = model()
        if step % LOOK_EVERY == 0 and are_pairs_best(logits, is_wanted):
            return True
        optimiser.zero_grad()
        loss_of(logits, is_wanted).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return are_pairs_best(model(), is_wanted)


def pairs_of(num_items: int) -> Bool[Tensor, "B X"]:
    """Which items each query wants: one query for each pair."""
    pairs = torch.tensor(list(itertools.combinations(range(num_items), 2)))
    return torch.zeros(len(pairs), num_items, dtype=torch.bool).scatter(1, pairs, True)


def are_pairs_best(logits: Float[Tensor, "B X"], is_wanted: Bool[Tensor, "B X"]) -> bool:
    """Return whether each query scores what it wants above all else."""
    least = logits.masked_fill(~is_wanted, torch.inf).amin(dim=1)
    most = logits.masked_fill(is_wanted, -torch.inf).amax(dim=1)
    return bool((least > most).all())


def loss_of(logits: Float[Tensor, "B X"], is_wanted: Bool[Tensor, "B X"]) -> Tensor:
    """The mean of -log softmax of each wanted item among itself and what is not wanted."""
    others = logits.masked_fill(is_wanted, -torch.inf).logsumexp(dim=1, keepdim=True)
    lost = torch.logaddexp(logits, others) - logits
    return lost[is_wanted].mean()


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
