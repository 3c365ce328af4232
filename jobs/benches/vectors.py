"""Frozen pretrained vectors: does a similarity that is learnt on top find more than their cosine?

Texts of TLDR and SciFact become vectors of `wordllama` (256 numbers, its weights are in its wheel). On these, nothing
is trained (`vector-cosine`), or linear maps under a dot product (`vector-dot`), or a Mixture of Logits (`vector-mol`),
for equal steps, batches and negatives, in three seeds. The last two store 256 numbers an item; the mixture 80 more, for
its mean component and its gate. What is compared is the hit rate among the first ten of the test split, over the whole
corpus.

    python -m jobs.benches.vectors [--data FOLDER] [--steps 1000] [--seeds 0 1 2]

A yes is a mixture above both others in every seed.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tyro
from rich.console import Console

from jobs.benches import pretrained
from jobs.benches.record import Record
from rails_ray.data.sources import Sources
from rails_ray.data.vectors import as_column
from rails_ray.families.config import DataConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.recipes import by_name
from rails_ray.families.training_family import training_family
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.values import ID, TEXT
from rails_ray.training.evaluation.report import evaluate
from rails_ray.training.piece import Given, fit

RECIPES = ("vector-cosine", "vector-dot", "vector-mol")


@dataclass(frozen=True)
class Arguments:
    """
    Args:
        data: folder with the data sets.
        sets: their names.
    """

    data: Path = Path("../shared/data")
    sets: tuple[str, ...] = ("tldr", "scifact")
    steps: int = 1000
    seeds: tuple[int, ...] = (0, 1, 2)


def main(arguments: Arguments) -> None:
    record, console = Record("vectors"), Console()
    for name in arguments.sets:
        with tempfile.TemporaryDirectory(prefix="rails-ray-vectors-") as folder:
            write(arguments.data / name, Path(folder) / "data")
            for row in rows_of(name, Path(folder), arguments):
                record.row(**row)
                console.print(row)


def write(texts: Path, folder: Path) -> None:
    """The same data set with vectors in place of texts."""
    folder.mkdir()
    for table in ("items", "queries"):
        read = Sources(str(texts)).table(table).read({"text": TEXT, **_own(table)}, optional={"title": TEXT}).table
        joined = read["text"].to_pylist()
        if "title" in read.column_names:
            joined = [f"{title}\n{text}" for title, text in zip(read["title"].to_pylist(), joined, strict=True)]
        kept = read.drop_columns([name for name in ("text", "title") if name in read.column_names])
        pq.write_table(kept.append_column("vector", as_column(pretrained.encode(joined))), folder / f"{table}.parquet")
    relevance = Sources(str(texts)).table("relevance").read({"query_id": ID, "item_id": ID}).table
    pq.write_table(pa.table(relevance), folder / "relevance.parquet")


def _own(table: str) -> dict[str, tuple[str, ...]]:
    return {"item_id": ID} if table == "items" else {"query_id": ID, "split": TEXT}


def rows_of(name: str, folder: Path, arguments: Arguments) -> Iterator[dict[str, Any]]:
    storage = Storage(str(folder))
    for recipe in RECIPES:
        for seed in arguments.seeds if recipe != "vector-cosine" else (0,):
            config = replace(by_name(recipe), seed=seed, data=DataConfig(folder=str(folder / "data")))
            config = replace(config, training=replace(config.training, num_steps=arguments.steps))
            read = read_data(config, storage)
            own = training_family(for_data(config, read))
            [piece] = own.pieces()
            started = time.perf_counter()
            fitted = fit(piece, Given(read=read, storage=storage, run="r"))
            assert fitted is not None
            seconds = time.perf_counter() - started
            model = own.trained_model([("model.safetensors", fitted.weights)])
            items = own.run_items(storage, "r", model, read)
            report = evaluate(model, items, read.queries["test"], "test", None, None)
            yield {
                "set": name,
                "recipe": recipe,
                "seed": seed,
                "steps": arguments.steps,
                "hit_rate_1": round(report.hit_rate[1], 4),
                "hit_rate_10": round(report.hit_rate[10], 4),
                "mrr": round(report.mrr, 4),
                "bytes_an_item": sum(column.nbytes for column in items.columns().values()) // len(items),
                "seconds": round(seconds, 1),
            }


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
