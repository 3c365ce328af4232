"""Can a mixture be a matrix of full rank that dot products of as many numbers cannot be, and when does one need that?

Free embeddings of n queries and n items, fitted to one matrix: nothing is held out, as the question is what can be said
at all. Rows have a `question`:

    constructed   the constructions of `theorem1_constructed`, in float64, against the nearest matrix of the rank that
                  a dot product of as many numbers has
    values        squared error of all entries: mixtures, trained, against the nearest matrix of a rank (exact)
    order         a softmax over the best items of each query: mixtures and dot products, both trained
    gate          values again, with ever more hidden units in w, and as many numbers of a query and of an item

Targets: entries uniform in [-1, 1]; products of rank 8; permutations; 4 random relevant items a query; of MovieLens-1M,
who saw which movie, and log p(j | i) / p(j) of movies.

    python -m jobs.benches.theorem1 --folder FOLDER [--questions constructed values order gate] [--targets ..]

with `interactions.parquet` of MovieLens-1M in FOLDER. Held fixed: three seeds of target and model; 2,000 full steps
of Adam with each of three learning rates, of which the one with the least loss is kept; tau .05, no dropout. A dot
product is as wide as makes its numbers at least those of the mixture, w's included. About half an hour on one core.

A yes would be a mixture with an error below the exact bound of the dot product, on every target that has full rank.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor, nn

from jobs.benches.record import Record
from jobs.benches.theorem1_constructed import (
    Constructed,
    best_of_rank,
    decomposed,
    equal_width,
    of_relevance,
    remembered,
    separating,
    turned_terms,
)
from jobs.benches.theorem1_models import (
    FreeDots,
    FreeMixture,
    Shape,
    Target,
    effective_rank,
    fit,
    measures,
    movie_target,
    random_target,
    softmax,
    squared,
)

SEEDS = (0, 1, 2)
LEARNING_RATES = (0.01, 0.03, 0.1)
STEPS = 2000
TARGETS = ("uniform", "low rank", "permutation", "relevance", "ml-1m users", "ml-1m movies")
SHAPES = (Shape(2, 2, 2), Shape(2, 2, 6), Shape(4, 4, 4))
AS_CONSTRUCTED = Shape(1, 2, 5)  # of `of_relevance` for a permutation, but with as many hidden units as the others
ORDER_WIDTHS = (2, 3, 4, 6, 8, 12)  # of dot products beside those as large as mixtures
GATES_HIDDEN = (16, 64, 256)
RANKS = (1, 4, 16)  # of the proof's B_1 and B_2
ONES = (1, 2, 3, 4)


@dataclass(frozen=True)
class Arguments:
    """
    Args:
        folder: of MovieLens-1M.
        sizes: n, the number of queries and of items.
        targets: of `values` and `order`.
    """

    folder: Path
    sizes: tuple[int, ...] = (64,)
    questions: tuple[str, ...] = ("constructed", "values", "order", "gate")
    targets: tuple[str, ...] = TARGETS


def main(arguments: Arguments) -> None:
    record = Record("theorem1")
    questions = {"constructed": constructed, "values": values, "order": order, "gate": gate}
    for size in arguments.sizes:
        for question in arguments.questions:
            for row in questions[question](arguments, size):
                record.row(question=question, size=size, **row)
                print(question, size, row, flush=True)


def constructed(arguments: Arguments, size: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    uniform = random_target("uniform", size, generator).matrix.double()
    for rank in RANKS:
        gates, first, second = decomposed(uniform, turned_terms(uniform, rank, generator))
        error = float((gates * first + (1 - gates) * second - uniform).abs().max())
        yield {"name": "decomposed", "rank": rank, "largest_error": error, "largest": float(first.abs().max())}
    if size <= 64:  # w remembers size^2 numbers for each of size^2 pairs
        yield {"name": "remembered", **compared(remembered(uniform), uniform)}
    for ones in ONES:
        best = torch.rand(size, size, generator=generator).topk(ones, dim=1).indices
        if ones == 1:
            best = torch.randperm(size, generator=generator)[:, None]
        relevant = torch.zeros(size, size, dtype=torch.bool).scatter(1, best, True)
        f, g = separating(relevant)
        margin = float((f @ g.T)[relevant].min() - (f @ g.T)[~relevant].max())
        row = compared(of_relevance(relevant), relevant.double())
        yield {"name": "of_relevance", "ones": ones, "width": f.shape[1], "margin": margin, **row}


def compared(made: Constructed, matrix: Tensor) -> dict[str, Any]:
    """The errors of a mixture and of the nearest matrix of rank as many as an equal dot product has."""
    found, width = made.matrix(), equal_width(made.num_parameters, *matrix.shape)
    return {
        "numbers": made.num_parameters,
        "dot_width": width,
        "largest_error": float((found - matrix).abs().max()),
        "error": float((found - matrix).norm() / matrix.norm()),
        "dot_error": float((best_of_rank(matrix, width) - matrix).norm() / matrix.norm()),
        "target_rank": int(torch.linalg.matrix_rank(matrix)),
    }


def values(arguments: Arguments, size: int) -> Iterator[dict[str, Any]]:
    for kind in arguments.targets:
        shapes = (AS_CONSTRUCTED, *SHAPES) if kind == "permutation" else SHAPES
        for shape in shapes:
            yield from mixtures(arguments, size, kind, shape, squared)
        widths = sorted({width_of(shape, size) for shape in shapes} | set(ORDER_WIDTHS))
        for seed in SEEDS:
            target = targeted(arguments, kind, size, seed)
            for width in widths:
                nearest = best_of_rank(target.matrix.double(), width).float()
                facts = {"target": kind, "seed": seed, "target_rank": effective_rank(target.matrix)}
                yield {"method": "dot", "numbers_each": width, **facts, **measures(nearest, target)}


def order(arguments: Arguments, size: int) -> Iterator[dict[str, Any]]:
    for kind in arguments.targets:
        for shape in SHAPES[:2]:
            yield from mixtures(arguments, size, kind, shape, softmax)
        for width in sorted({width_of(shape, size) for shape in SHAPES[:2]} | set(ORDER_WIDTHS)):
            for row in tuned(arguments, size, kind, softmax, partial(FreeDots, width=width)):
                yield {"method": "dot", "numbers_each": width, **row}


def gate(arguments: Arguments, size: int) -> Iterator[dict[str, Any]]:
    for hidden in GATES_HIDDEN:
        for row in mixtures(arguments, size, "uniform", Shape(2, 2, 2, hidden), squared):
            matrix = targeted(arguments, "uniform", size, row["seed"]).matrix.double()
            nearest = best_of_rank(matrix, row["numbers_each"])
            yield {**row, "dot_error": float((nearest - matrix).norm() / matrix.norm())}


def mixtures(
    arguments: Arguments, size: int, kind: str, shape: Shape, loss: Callable[[Tensor, Target], Tensor]
) -> Iterator[dict[str, Any]]:
    facts = {"method": "mixture", "shape": str(shape), "numbers_each": width_of(shape, size)}
    for row in tuned(arguments, size, kind, loss, partial(FreeMixture, shape=shape)):
        yield {**facts, "numbers_per_item": shape.numbers_per_item, **row}


def tuned(
    arguments: Arguments,
    size: int,
    kind: str,
    loss: Callable[[Tensor, Target], Tensor],
    made: Callable[[Target], nn.Module],
) -> Iterator[dict[str, Any]]:
    """For each seed, the fit of the learning rate with the least loss."""
    for seed in SEEDS:
        target = targeted(arguments, kind, size, seed)
        tried = []
        for rate in LEARNING_RATES:
            torch.manual_seed(seed)
            fitted = fit(made(target), loss, target, rate, STEPS)
            tried.append((float(loss(fitted, target)), rate, fitted))
        least, rate, fitted = min(tried, key=lambda each: each[0])
        facts = {"target": kind, "seed": seed, "target_rank": effective_rank(target.matrix)}
        yield {**facts, "learning_rate": rate, "loss": least, "trials": len(tried), **measures(fitted, target)}


def targeted(arguments: Arguments, kind: str, size: int, seed: int) -> Target:
    generator = torch.Generator().manual_seed(seed)
    if kind.startswith("ml-1m"):
        return movie_target(kind, size, arguments.folder, generator)
    return random_target(kind, size, generator)


def width_of(shape: Shape, size: int) -> int:
    """The width of a dot product with at least as many numbers, those of w and the scale included."""
    empty = Target(torch.empty(size, size), torch.empty(size, size, dtype=torch.bool))
    return equal_width(sum(part.numel() for part in FreeMixture(empty, shape).parameters()), size, size)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(tyro.cli(Arguments))
