"""Corpora to plan for, and the rows of the benches."""

from typing import Any

from jobs.benches.record import recorded
from rails_ray.cli.planning.machines import machine
from rails_ray.cli.planning.plans import PlannedCorpus
from rails_ray.cli.planning.searches import Search
from rails_ray.cli.planning.shapes import Names, Shape

TINY = Shape(num_query_components=2, num_item_components=3, width=5, gate_hidden=7)
DOT = Shape(num_query_components=1, num_item_components=1)


def corpus(num_items: int = 1_000_000, shape: Shape = DOT, gpu: str = "none", **search: Any) -> PlannedCorpus:
    return PlannedCorpus(num_items, shape, Search(**search), machine(gpu), Names())


def rows(file: str) -> list[dict[str, Any]]:
    return recorded(file.removesuffix(".jsonl"))
