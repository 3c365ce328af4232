"""Terminal output: progress during work, tables at its end."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from rails_ray.cli.tuning import Tuning
from rails_ray.cutoffs.measuring import LEVELS, Measured, segment_name
from rails_ray.cutoffs.temperatures import Factors
from rails_ray.schema.responses import SearchResponse
from rails_ray.search.measured import SearchFigures
from rails_ray.storage.described import HiddenEntry, IndexEntry, Manifest, PartEntry
from rails_ray.storage.manifest import summary
from rails_ray.storage.usage import SharedSizes
from rails_ray.storage.versions import Listed
from rails_ray.training.evaluation.calibrating import CalibrationReport, ShareKept
from rails_ray.training.evaluation.report import Report

SHOWN_ITEMS = 4  # items of an answer in a line of a table
LOW_RECALL = 0.95  # of an index against an exact search
LOG_S = 10.0  # seconds between two lines of progress in a log

# How to show the measures of a piece; any other measure: under its own name, to four places.
HEADINGS = {"seconds": "time"}
FORMATS = {"loss": "{:.3f}", "seconds": "{:.1f} s"}
MEASURES = {"bucket_recall": "bucket recall: held out, of the 100 (or 2%) most probable"}


@contextmanager
def spinner(console: Console, what: str) -> Iterator[None]:
    """A spinner that shows the time taken, and leaves a line with it at the end."""
    with _progress(console, SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as progress:
        task = progress.add_task(what, total=1)
        yield
        progress.update(task, completed=1)


class Bar:
    """A bar for work that reports (done, total, note). A log gets a line every LOG_S seconds instead."""

    def __init__(self, progress: Progress, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._what = what
        self._task = progress.add_task(what, total=None, note="starting")
        self._clock = clock
        self._last_line = clock()

    def __call__(self, done: int, total: int, note: str) -> None:
        self._progress.update(self._task, completed=done, total=total, note=note)
        console, now = self._progress.console, self._clock()
        if not console.is_terminal and now - self._last_line >= LOG_S:
            self._last_line = now
            console.print(f"  {self._what} {done}/{total} {note}", markup=False, highlight=False)


@contextmanager
def bar(console: Console, what: str) -> Iterator[Bar]:
    """A progress bar that stays on screen when the work ends."""
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


def answers(names: Sequence[str], cut: SearchResponse, best: SearchResponse, title: str) -> Table:
    """A table of search results: query, best items with scores, number of items that the cut-off kept.

    Args:
        names: what to call each query.
        cut: the response with the cut-off; it may keep more items than a line holds.
        best: the response with the few best items; the items that the cut-off drops are dim.
    """
    cutoff = ", ".join(
        f"{name} {value if isinstance(value, str) else f'{value:.6g}'}"
        for name, value in cut.cutoff.items()
        if (name, value) != ("min_items", 1)  # of any cut-off that no request names
    )
    table = Table(title=title, caption=f"dim: below the threshold of the cut-off, {cutoff}", title_justify="left")
    table.add_column("query", style="bold", no_wrap=True)
    table.add_column("found, with scores")
    table.add_column("kept", justify="right")
    table.add_column("threshold", justify="right", style="dim")
    for name, kept, found in zip(names, cut.results, best.results, strict=True):
        fields = [_fields(own) for own in found.fields or [{}] * len(found.items)]
        rows = zip(found.items, found.titles or found.items, found.scores, fields, strict=True)
        cells = [
            Text(f"{title or item} {score:.2f}{own}", style="" if number < kept.num_kept else "dim")
            for number, (item, title, score, own) in enumerate(rows)
        ]
        between = Text("\n" if found.titles or found.fields else "  ")
        threshold = "" if kept.threshold is None else f"{kept.threshold:.2f}"
        table.add_row(Text(name), between.join(cells), f"{kept.num_kept}{'+' if kept.is_truncated else ''}", threshold)
    return table


def _fields(fields: Mapping[str, Any]) -> str:
    """Render the attributes of an item, after its score."""
    shown = (f"{name} {', '.join(own) if isinstance(own, list) else own}" for name, own in fields.items())
    return "".join(f"; {own}" for own in shown)


def reports(
    rows: Sequence[tuple[str, Report, float | None]], title: str, ks: Sequence[int] = (1, 10, 50, 200)
) -> Table:
    """A table of (name, report, seconds of training), with the hit rates at `ks`."""
    has_lists = any(report.lists for _, report, _ in rows)
    has_time = any(seconds is not None for _, _, seconds in rows)
    caption = "HR: hit rate, MRR: mean reciprocal rank"
    caption += "; P, R, F1: precision, recall, F1 of the cut lists" if has_lists else ""
    caption += "; time: training time" if has_time else ""
    table = Table(title=title, caption=caption, title_justify="left")
    table.add_column("", style="bold", no_wrap=True)
    headings = [
        *(f"HR@{k}" for k in ks),
        "MRR",
        *(("P", "R", "F1") if has_lists else ()),
        *(["time"] if has_time else []),
    ]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, report, seconds in rows:
        lists = report.lists
        quality = ["", "", ""] if lists is None else [f"{v:.2f}" for v in (lists.precision, lists.recall, lists.f1)]
        time = "" if seconds is None else f"{seconds:.0f} s"
        hit_rates = (f"{report.hit_rate[k]:.4f}" for k in ks)
        more = [*(quality if has_lists else []), *([time] if has_time else [])]
        table.add_row(name, *hit_rates, f"{report.mrr:.4f}", *more)
    return table


def pieces(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """A table of the measures of each piece, with the mean of every measure that all pieces have."""
    numbers = (name for row in rows for name, value in row.items() if isinstance(value, int | float))
    names = list(dict.fromkeys(numbers))
    captions = [MEASURES[name] for name in names if name in MEASURES]
    table = Table("piece", title=title, title_justify="left", caption="; ".join(captions) or None)
    for name in names:
        table.add_column(HEADINGS.get(name, name.replace("_", " ")), justify="right", no_wrap=True)
    shared = [name for name in names if all(name in row for row in rows)]
    mean = {"piece": "mean", **{name: sum(row[name] for row in rows) / len(rows) for name in shared}}
    for row in [*rows, mean]:
        figures = (FORMATS.get(name, "{:.4f}").format(row[name]) if name in row else "" for name in names)
        table.add_row(row["piece"], *figures)
    return table


def of_codes(facts: Mapping[str, float]) -> str:
    """Render what was measured of a quantizer, in a line."""
    loss, dead = facts["reconstruction_loss"], int(facts["num_dead_codewords"])
    return f"codes: mean squared error {loss:.3g} an item; {dead:,} codewords have no item of the sample"


def calibration(report: CalibrationReport, title: str) -> Table:
    """A table of nominal and measured coverage, overall and by segment, with the list lengths at each level."""
    table = Table(title=title, title_justify="left")
    for heading in ("coverage", "of", "measured", "95% interval", "mean kept", "10%", "50%", "90%", "empty"):
        table.add_column(heading, justify="left" if heading == "of" else "right", no_wrap=True)
    if any(one.is_truncated for one in report.lists):
        table.caption = "+: some lists are longer than what was ranked"
    lists = {one.nominal: one for one in report.lists}
    for one in report.measured:
        cells = [""] * 5
        if one.segment is None:
            own = lists[one.nominal]
            kept = (f"{number:.0f}" for number in own.num_kept)
            cells = [f"{own.mean:.1f}{'+' if own.is_truncated else ''}", *kept, f"{own.empty_fraction:.1%}"]
        table.add_row(*_coverage(one, report.edges), *cells, style="" if one.is_as_promised else "red")
    return table


def shares(kept: Sequence[ShareKept], factors: Factors, title: str) -> Table:
    """A table of what mass and nucleus keep at each level, with tau_q as trained and as fitted."""
    fitted = {f"mass over {name}": own for name, own in factors.mass.items()}
    if factors.softmax is not None:
        fitted["nucleus"] = factors.softmax
    table = Table("", "tau_q times", title=title, title_justify="left")
    for level in LEVELS:
        table.add_column(f"{level:g}", justify="right", no_wrap=True)
    table.caption = "the coverage measured at each nominal share; +-: 95% interval of a fitted factor"
    for one in kept:
        times = "1, as trained"
        if one.factor != 1:
            own = fitted[one.name]
            times = f"{own.value:.3g} +- {(own.high - own.low) / 2:.2g}"
        table.add_row(one.name, times, *(f"{own.coverage:.4f}" for own in one.measured))
    return table


def tuning(found: Tuning) -> Table:
    """A table of the best cut-off of each kind, the best of all first."""
    name = f"F{found.beta:g}"
    title = f"{found.tuned}: {found.num_queries} queries of split {found.split} choose"
    if found.calibrated_on is not None:
        title += f", {found.calibrated_on} calibrate"
    table = Table("", "cut-off", title=title, title_justify="left")
    for heading in (name, "other half", "precision", "recall", "mean kept", "10%", "50%", "90%", "empty"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.caption = f"other half: {name} of the value that is best on the other half of the queries"
    if any(one.truncated_fraction for one in found.best):
        table.caption += "; +: some lists are longer than what was ranked"
    for number, one in enumerate(found.best):
        figures = (f"{value:.4f}" for value in (one.f_beta, one.held_out_f_beta, one.precision, one.recall))
        lengths = f"{one.mean_kept:.1f}{'+' if one.truncated_fraction else ''}", *(f"{n:.0f}" for n in one.num_kept)
        table.add_row(
            "best" if number == 0 else "",
            f"{one.kind} {one.value:.8g}",
            *figures,
            *lengths,
            f"{one.empty_fraction:.1%}",
            style="bold" if number == 0 else "",
        )
    return table


def searches(measured: Sequence[SearchFigures], title: str, best: SearchFigures | None = None) -> Table:
    """A table of searches: recall against brute force, what certificates prove, and the time of one query.

    Args:
        best: the one that was chosen, if any.
    """
    table = Table("", "method", "parameters", title=title, title_justify="left")
    for heading in ("k", "recall@k", "95% interval", "certified", "ms", "speed"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.caption = (
        "certified: answers that prove to be exact; ms: median of one query at a time; speed: of brute_force"
    )
    usual = {own.k: own.ms for own in measured if own.method == "brute_force"}
    for own in measured:
        speed = f"{usual[own.k] / own.ms:.1f}x" if own.k in usual and own.ms else ""
        table.add_row(
            "best" if own is best else "",
            own.method,
            ", ".join(f"{name} {value}" for name, value in own.params.items()),
            str(own.k),
            f"{own.recall:.4f}",
            "no item missed" if own.low == own.high else f"{own.low:.4f} to {own.high:.4f}",
            f"{own.certified_fraction:.1%}",
            f"{own.ms:.2f}",
            speed,
            style="bold" if own is best else "",
        )
    return table


def coverage(measured: Sequence[Measured], title: str) -> Table:
    """A table of nominal and measured coverage over all queries."""
    table = Table("coverage", "of", "measured", "95% interval", title=title, title_justify="left")
    for one in measured:
        if one.segment is None:
            table.add_row(*_coverage(one, ()), style="" if one.is_as_promised else "red")
    return table


def _coverage(one: Measured, edges: Sequence[float]) -> list[str]:
    interval = f"{one.low_both:.4f} to {one.high_both:.4f}"
    return [f"{one.nominal:g}", segment_name(one.segment, edges), f"{one.coverage:.4f}", interval]


def low_recalls(recalls: Mapping[str, float]) -> list[str]:
    """Say which indexes find few of the best items, by a sample of items as queries."""
    return [
        f"index of {name}: recall {recall:.2f} of the ten best, below {LOW_RECALL:g}: raise nprobe or ef_search in "
        "requests, or encode with another --index"
        for name, recall in recalls.items()
        if recall < LOW_RECALL
    ]


def versions(rows: Sequence[Listed], title: str, tags: Mapping[str, str] = {}) -> Table:
    """A table of index versions.

    Args:
        tags: the version of each tag.
    """
    table = Table(title=title, title_justify="left")
    for heading in ("version", "state", *(["tags"] if tags else []), "published", "run"):
        table.add_column(heading, no_wrap=heading == "version")
    for heading in ("items", "shards", "size"):
        table.add_column(heading, justify="right")
    for row in rows:
        described = row.described
        style = {"current": "bold", "damaged": "red"}.get(row.state, "" if row.state == "published" else "dim")
        named = [", ".join(tag for tag, version in tags.items() if version == row.version)] if tags else []
        if described is None:
            table.add_row(row.version, row.state, *named, style=style)
            continue
        created_at = described.created_at if isinstance(described, Manifest) else ""
        size_bytes = sum(entry.size_bytes for entry in described.entries)
        counts = f"{described.num_live:,}", str(len(described.shard_items)), decimal(size_bytes)
        table.add_row(row.version, row.state, *named, created_at, described.run, *counts, style=style)
    return table


def usage(found: SharedSizes, title: str) -> Table:
    """A table of the bytes of index versions."""
    table = Table(title=title, title_justify="left", show_footer=True)
    table.add_column("version", "all, each file once", no_wrap=True)
    table.add_column("state")
    table.add_column("size", decimal(found.total_bytes), justify="right")
    table.add_column("no other version has", justify="right")
    for own in found.versions:
        sizes = ("unknown" if size is None else decimal(size) for size in (own.size_bytes, own.own_bytes))
        table.add_row(own.version, own.state, *sizes)
    return table


def version(manifest: Manifest) -> tuple[Table, Table]:
    """Two tables: the facts of a version, and its files."""
    facts = Table("version", manifest.version, title_justify="left")
    for name, value in summary(manifest).items():
        if name != "version":
            is_table = isinstance(value, dict)
            facts.add_row(name, _named(value) if is_table else str(value))
    if manifest.attributes:
        facts.add_row("attributes", _named(manifest.attributes))
    files = Table("file", "items", "size", "sha256")
    for entry in manifest.entries:
        name, num_items = entry.path, ""
        if isinstance(entry, PartEntry):
            name, num_items = f"shard {entry.shard} from item {entry.first_row}", f"{entry.num_items:,}"
            name += "" if entry.delta is None else f", delta {entry.delta}"
        elif isinstance(entry, HiddenEntry):
            name, num_items = "hidden items", f"{entry.num_items:,}"
        elif isinstance(entry, IndexEntry):
            name = f"shard {entry.shard}, index of {entry.name}"
        files.add_row(name, num_items, decimal(entry.size_bytes), entry.sha256[:12])
    return facts, files


def _named(kinds: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
