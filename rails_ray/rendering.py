"""What a person sees in the terminal: progress while work goes on, tables when it is done."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from rails_ray.evaluation.report import Report

SHOWN_ITEMS = 4  # of an answer, in a line of a table


@contextmanager
def spinner(console: Console, what: str) -> Iterator[None]:
    """A spinner with the time it has taken; a line with that time when it ends."""
    with _progress(console, SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
        task = progress.add_task(what, total=1)
        yield
        progress.update(task, completed=1)


class Bar:
    """A bar for work that reports (done, total, note)."""

    def __init__(self, progress: Progress, what: str) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=None, note="starting workers")

    def __call__(self, done: int, total: int, note: str) -> None:
        note = "validating" if done == total else note
        self._progress.update(self._task, completed=done, total=total, note=note)


@contextmanager
def bar(console: Console, what: str) -> Iterator[Bar]:
    """A progress bar; its line stays when the work ends."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with _progress(console, *columns) as progress:
        yield Bar(progress, what)


def _progress(console: Console, *columns: Any) -> Progress:
    return Progress(*columns, console=console, refresh_per_second=4)


def answers(texts: Sequence[str], cut: Mapping[str, Any], best: Mapping[str, Any], title: str) -> Table:
    """A table of a search's answers: query, the best items with their scores, how many the cut-off kept.

    Args:
        cut: the response with the cut-off, which may keep more items than a line holds.
        best: the response with the best few items, whatever their scores; those that were cut are dim.
    """
    cutoff = ", ".join(f"{name} {value:.6g}" for name, value in cut["cutoff"].items())
    table = Table(title=title, caption=f"dim: below the threshold of the cut-off, {cutoff}", title_justify="left")
    table.add_column("query", style="bold", no_wrap=True)
    table.add_column("found, with scores")
    table.add_column("kept", justify="right")
    table.add_column("threshold", justify="right", style="dim")
    for text, kept, found in zip(texts, cut["results"], best["results"], strict=True):
        pairs = zip(found["items"], found["scores"], strict=True)
        cells = [
            Text(f"{item} {score:.2f}", style="" if number < kept["num_kept"] else "dim")
            for number, (item, score) in enumerate(pairs)
        ]
        threshold = "" if kept["threshold"] is None else f"{kept['threshold']:.2f}"
        table.add_row(
            Text(text), Text("  ").join(cells), f"{kept['num_kept']}{'+' if kept['is_truncated'] else ''}", threshold
        )
    return table


def reports(rows: Sequence[tuple[str, Report, float | None]], title: str) -> Table:
    """A table of (name, report, seconds of training)."""
    caption = (
        "HR: hit rate, MRR: mean reciprocal rank; P, R, F1: precision, recall, F1 of the cut lists; time: of training"
    )
    table = Table(title=title, caption=caption, title_justify="left")
    table.add_column("", style="bold", no_wrap=True)
    ks = list(rows[0][1].hit_rate)
    for heading in (*(f"HR@{k}" for k in ks), "MRR", "P", "R", "F1", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, report, seconds in rows:
        lists = report.lists
        quality = ("", "", "") if lists is None else (f"{v:.2f}" for v in (lists.precision, lists.recall, lists.f1))
        table.add_row(
            name,
            *(f"{report.hit_rate[k]:.4f}" for k in ks),
            f"{report.mrr:.4f}",
            *quality,
            "" if seconds is None else f"{seconds:.0f} s",
        )
    return table
