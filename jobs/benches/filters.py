"""Filters: how long does a search of some items take, what does it find, and how long does its mask take to make?

Vectors of length 1 (64 numbers, clustered) have a number each, drawn from [0, 1), and a filter of a share s is
`number < s`. Parts, of which --parts takes some:

- masks: an equality, a range, `$in` of 100 and an `$and` of three over 1,000,000 and 10,000,000 rows: made, read from
  what is kept, and by pyarrow, DuckDB and LanceDB (`filters_masks`);
- peers: latency and recall of one query after the other for shares 0.5, 0.1, 0.01 and 0.001, exactly and by several
  beams of a graph, of `local.open`, LanceDB with a prefilter, and PostgreSQL with pgvector and iterative scans, on the
  same vectors in the same run (`filters_peers`);
- ways: items that pass gathered, or the others hidden, for 1 and 32 queries, under a dot product, exactly, by the graph
  and by the other kinds of index (of 200,000), and under a mixture of 8 x 8 components of 32 numbers (`filters_ways`).

    pip install 'rails-ray[bench]' duckdb
    python -m jobs.benches.filters [--num-items 1000000] [--folder KEPT] [--parts masks peers ways]

With --folder a later run finds what was built: graphs of a million vectors take minutes. Peers that are not installed
are left out.

A yes is, of a search that passes half: at most 1.1 times the time without a filter under a dot product, 0.65 times
under a mixture; of one that passes 0.001 under a mixture, 0.05 times. The costs that decide between the ways are in
`search.gathering` and `search.indexes`.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console

from jobs.benches.filters_corpus import SHARES, Corpus
from jobs.benches.filters_masks import of_masks
from jobs.benches.filters_peers import PEERS, missing, of_peer
from jobs.benches.filters_ways import of_indexes, of_mixture, of_products
from jobs.benches.record import Record
from rails_ray import local
from rails_ray.search.candidates import AVERAGE

Part = Literal["masks", "peers", "ways"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """
    Args:
        num_items: vectors.
        num_rows: rows of masks, one number after the other.
        num_indexed: vectors of the other kinds of index, at most.
        num_mixture: items of the mixture.
        folder: for what is built, which a later run finds there; by default it is removed.
        peers: which are measured.
    """

    num_items: int = 1_000_000
    num_rows: tuple[int, ...] = (1_000_000, 10_000_000)
    num_indexed: int = 200_000
    num_mixture: int = 50_000
    repeats: int = 5
    folder: Path | None = None
    parts: tuple[Part, ...] = ("masks", "peers", "ways")
    peers: tuple[Literal["rails-ray", "lancedb", "pgvector"], ...] = ("rails-ray", "lancedb", "pgvector")


def main(arguments: Arguments) -> None:
    record, console = Record("filters"), Console()
    for name in arguments.peers:
        if packages := missing(name):
            console.print(f"{name} is left out: {', '.join(packages)} must be installed (the extra bench)")
    for row in rows_of(arguments):
        record.row(**row)
        console.print(row)


def rows_of(arguments: Arguments) -> Iterator[dict[str, Any]]:
    """The rows of all parts."""
    with ExitStack() as stack:
        folder = arguments.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rails-ray-filters-")))
        corpus = Corpus(folder, arguments.num_items)
        if "masks" in arguments.parts:
            for num_rows in arguments.num_rows:
                yield from of_masks(num_rows, arguments.repeats)
        if "peers" in arguments.parts:
            best = {share: corpus.best(share) for share in SHARES}
            for name in (name for name in arguments.peers if not missing(name)):
                yield from of_peer(name, corpus, best)
        if "ways" in arguments.parts:
            yield from of_mixture(arguments.num_mixture, min(arguments.repeats, 3))  # 32 scores of each take seconds
            yield from of_indexes(corpus, min(arguments.num_indexed, arguments.num_items), arguments.repeats)
            kept, _ = corpus.kept("rails-ray", lambda folder: PEERS["rails-ray"].build(corpus, folder))
            version = local.open(str(kept))
            graph = version.shards[0].searcher.first_stage.indexes[AVERAGE]
            yield from of_products(corpus, graph, arguments.repeats)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
