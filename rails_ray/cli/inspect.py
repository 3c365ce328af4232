"""Look at a data set before training: what it is, what is wrong with it, which recipes fit, and what to beat."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from rails_ray.cli.base import ExcludesSeen, errors, out
from rails_ray.cli.planning.quantities import shown_bytes, shown_seconds
from rails_ray.errors import RailsRayError
from rails_ray.training.evaluation.seen import labelled, remark

NUM_SAMPLED = 10_000  # a share of the sample has a standard error of .005 at most
SHOWN_HIT_RATE = "10"


@dataclass(frozen=True, kw_only=True)
class InspectData(ExcludesSeen):
    """Look at a data set before training: its facts, its problems, the recipes that fit, and what to beat. No cluster
    is needed. The exit code is 1 if a recipe cannot run because of a problem.

    Args:
        folder: Folder of the tables, local or s3://bucket/prefix.
        items: File, folder or pattern (* and ?) of the items, if they are not in the folder.
        queries: Likewise of the queries.
        relevance: Likewise of the relevance.
        interactions: Likewise of the interactions.
        columns: Columns that are read in place of others, each NAME=COLUMN or TABLE.NAME=COLUMN.
        max_dropped: Share of the rows of a table, and of each of its files of 100 rows or more, that may name items,
            queries or users that are not there.
        zero_vectors: What becomes of vectors of zeros, which no cosine compares: refuse them, or keep them.
        sample: Texts and vectors to look at, at most. All rows are checked, whatever it is.
        pretrained: A model of sentence-transformers to measure on 200 test queries of texts and 2,000 items: its
            folder, or its name if it is in the local cache of Hugging Face.
        timing: Time a few steps and a few items, to tell what training and encoding will take.
        compare: A recipe with a mixture, to train for a tenth of its steps, at most 200, beside a dot product of as
            many numbers.
        json: Print JSON alone.
    """

    folder: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[FOLDER]")] = None
    items: str | None = None
    queries: str | None = None
    relevance: str | None = None
    interactions: str | None = None
    columns: tuple[str, ...] = ()
    max_dropped: float = 0.1
    zero_vectors: Literal["refuse", "keep"] = "refuse"
    sample: int = NUM_SAMPLED
    pretrained: Annotated[str | None, tyro.conf.arg(name="encoder.pretrained")] = None
    timing: bool = True
    compare: Annotated[str | None, tyro.conf.arg(metavar="RECIPE")] = None
    json: bool = False

    def run(self) -> dict[str, Any]:
        if self.sample < 1:
            raise ValueError(f"--sample must be at least 1, got {self.sample}")
        report = self.report(errors if self.json else out)
        if self.json:
            print(json.dumps(report, indent=1))
        else:
            show(report)
        if report["problems"]:
            raise RailsRayError(f"{report['folder']} must be data that training takes, got {_num_problems(report)}")
        return report

    def report(self, console: Console) -> dict[str, Any]:
        """
        Args:
            console: where progress is shown.

        Raises:
            NotFoundError: if there is no table.
            ValueError: if no place is given.
        """
        with console.status("loading torch"):
            from rails_ray.cli import rendering
            from rails_ray.cli.inspecting.report import inspect
            from rails_ray.families.config import DataConfig
            from rails_ray.families.data import sources_of, with_data
            from rails_ray.families.recipes import by_name, names

        given = DataConfig(
            folder=self.folder,
            items=self.items,
            queries=self.queries,
            relevance=self.relevance,
            interactions=self.interactions,
            columns=self.columns,
            max_dropped=self.max_dropped,
            zero_vectors=self.zero_vectors,
        )
        if given.folder is None and not given.places:
            raise ValueError("give the folder of a data set, or --items and the places of its other tables, got none")
        data = with_data(by_name(names()[0]), given).data
        with rendering.bar(console, "inspect") as report:
            return inspect(
                sources_of(data),
                num_sampled=self.sample,
                has_timing=self.timing,
                exclude_seen=self.excludes_seen,
                pretrained=self.pretrained,
                compared=self.compare,
                on_progress=report,
            )


def _num_problems(report: Mapping[str, Any]) -> str:
    number = len(report["problems"])
    return f"{number} problem{'s' * (number > 1)}"


def show(report: Mapping[str, Any]) -> None:
    """Print a report: tables, then short sentences."""
    out.print(_tables(report))
    for reading, facts in report["facts"].items():
        out.print(_facts(facts, f"read as {reading}"))
    out.print(_recipes(report["recipes"]))
    say(report["try_first"])
    if report["baselines"]:
        out.print(_baselines(report["baselines"]))
    if report["times"]:
        out.print(_times(report["times"]))
    if report["compared"]:
        say([report["compared"]["sentence"]])
    say(remarks(report))
    say([f"note: {sentence}" for sentence in report["notes"]])
    say([f"problem: {sentence}" for sentence in report["problems"]])


def say(sentences: Iterable[str]) -> None:
    """Print sentences as they are, a line each."""
    for sentence in sentences:
        out.print(sentence, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _tables(report: Mapping[str, Any]) -> Table:
    table = Table("table", title=report["folder"], title_justify="left")
    for heading in ("rows", "files", "size"):
        table.add_column(heading, justify="right")
    table.add_column("columns", overflow="fold")
    for name, own in report["tables"].items():
        counts = f"{own['rows']:,}", f"{own['files']:,}", shown_bytes(own["bytes"])
        table.add_row(name, *counts, ", ".join(own["columns"]))
    return table


def _facts(facts: Mapping[str, Any], title: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    items = facts["items"]
    table.add_row("items", f"{items['num']:,}")
    for line in _inputs(items, "item"):
        table.add_row(*line)
    if "queries" not in facts:
        return table
    queries, relevance = facts["queries"], facts["relevance"]
    counts = (f"{queries[split]:,} {split}" for split in ("train", "valid", "test"))
    table.add_row("queries", ", ".join(counts))
    for line in _inputs(queries, "query"):
        table.add_row(*line)
    if "histories" in facts:
        own = facts["histories"]
        who = _who(own)
        table.add_row("histories", f"{own['interactions']:,} interactions of {own['users']:,} {who}s")
        table.add_row("their lengths", _quantiles(own["lengths"]))
        table.add_row("density", f"{own['density']:.2%} of all pairs of a {who} and an item")
        ties = f"{own['num_ties']:,} ties, which decide {own['num_tied_tests']:,} of {queries['test']:,} test items"
        table.add_row("their order", f"by {own['sorted_by']}, then by row: {ties}")
        seen = f"{own['num_repeats']:,} interactions and {own['num_seen_tests']:,} test items repeat an earlier item"
        table.add_row("repeats", f"{seen} of their history; {own['num_duplicates']:,} duplicates")
    else:
        table.add_row("relevance", f"{relevance['pairs']:,} pairs of a query and an item")
        table.add_row("items of a query", _quantiles(relevance["items_per_query"]))
    if "weights" in facts:
        own = facts["weights"]
        shown = ", ".join(f"{name} {_number(own[name])}" for name in ("min", "mean", "max"))
        table.add_row("weights of training pairs", f"column {own['column']}: {shown}; {own['num_zero']:,} are 0")
    table.add_row("training queries of an item", _quantiles(relevance["training_queries_per_item"]))
    named = relevance["test_pairs_named_in_training_fraction"]
    table.add_row("known items", f"{named:.1%} of the test pairs ask for an item that a training query names")
    return table


def _who(histories: Mapping[str, Any]) -> str:
    """Name what has a history, by the column that is read."""
    return "session" if "session" in histories["column"].casefold() else "user"


def _inputs(facts: Mapping[str, Any], what: str) -> list[tuple[str, str]]:
    """The lines on what items or queries are made of."""
    lines = []
    if "texts" in facts:
        own = facts["texts"]
        lines.append((f"words of an {what}" if what == "item" else f"words of a {what}", _quantiles(own["words"])))
        lines.append(("its characters", _quantiles(own["characters"])))
        again = f"{own['num_duplicates']:,} repeat an earlier one, {own['blank_fraction']:.2%} hold no word"
        lines.append((f"texts of {'items' if what == 'item' else 'queries'}", again))
    if "vectors" in facts:
        own = facts["vectors"]
        number = "1 vector" if own["num_vectors"] == 1 else f"{own['num_vectors']} vectors"
        norms = "all of length 1" if own["is_normalised"] else f"lengths {_quantiles(own['norms'])}"
        again = f"{own['num_duplicates']:,} repeat an earlier one"
        lines.append((f"{what} vectors", f"{number} of {own['width']:,} numbers; {norms}; {again}"))
    if "features" in facts:
        own = facts["features"]
        lines.append(("features", f"{own['width']:,} in all; of a query: {_quantiles(own['lengths'])}"))
    return lines


def _quantiles(own: Mapping[str, float]) -> str:
    """Such as: mean 3.5, 10% 1, 50% 3, 90% 6, max 41."""
    return ", ".join(f"{name} {_number(value)}" for name, value in own.items())


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _recipes(verdicts: Mapping[str, Any]) -> Table:
    """Those that fit first; recipes that lack the same are one line."""
    table = Table("recipe", "fits", "because", title="recipes", title_justify="left")
    table.columns[2].overflow = "fold"
    together = dict[tuple[bool, str], list[str]]()
    for name, own in verdicts.items():
        together.setdefault((own["fits"], own["why"]), []).append(name)
    for (fits, why), recipes in sorted(together.items(), key=lambda line: not line[0][0]):
        table.add_row("\n".join(recipes), "yes" if fits else "no", why, style="" if fits else "dim")
    return table


def _baselines(rows: list[Mapping[str, Any]]) -> Table:
    table = Table("to beat", title="what there is to beat, on the test queries", title_justify="left")
    for heading in (f"HR@{SHOWN_HIT_RATE}", "HR@1", "MRR", "queries", "items"):
        table.add_column(heading, justify="right")
    for row in rows:
        parts = (("num_queries", "num_test_queries"), ("num_items", "num_corpus_items"))
        sizes = [_of(row[part], row[whole]) for part, whole in parts]
        for name, own in _figures(row):
            rates = f"{own['hit_rate'][SHOWN_HIT_RATE]:.4f}", f"{own['hit_rate']['1']:.4f}", f"{own['mrr']:.4f}"
            table.add_row(name, *rates, *sizes)
    return table


def _figures(baseline: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The figures of a baseline by what to call them: two, if it has them with seen items excluded and allowed."""
    name = baseline["name"]
    return [(name if label is None else f"{name}, {label}", own) for label, own in labelled(baseline)]


def _of(part: int, whole: int) -> str:
    return f"{part:,}" if part == whole else f"{part:,} of {whole:,}"


def _times(times: Mapping[str, Any]) -> Table:
    table = Table("recipe", title="what it takes: an estimate from a few steps and items", title_justify="left")
    for heading in ("training", "steps", "passes", "encoding"):
        table.add_column(heading, justify="right")
    for name, own in times.items():
        if own is None:
            table.add_row(name, "not timed: the model has a row for each item", "", "", "")
            continue
        steps = f"{own['num_steps']:,} of {shown_seconds(own['step_s'])}"
        if own["num_pieces"] > 1:
            steps = f"{own['num_pieces']} x {steps}"
        encoding = "looked up" if own["encode_s"] is None else shown_seconds(own["encode_s"])
        table.add_row(name, shown_seconds(own["train_s"]), steps, f"{own['num_passes']:.3g}", encoding)
    return table


def remarks(report: Mapping[str, Any]) -> list[str]:
    """Sentences on what training does not refuse, and should be known."""
    found = []
    if report["splits"] is not None:
        found += _of_splits(report)
    for facts in report["facts"].values():
        found += _of_facts(facts)
    for own in report["baselines"]:
        if own["num_items"] < own["num_corpus_items"]:
            found.append(
                f"{own['name']} ranked {own['num_items']:,} of {own['num_corpus_items']:,} items: on the whole corpus "
                "it finds less"
            )
        if own["seen_items"] is not None and own["seen_items"]["allowed"] is not None:
            found.append(remark(own["seen_items"], "test"))
    if any(own["name"] == "baseline-bm25" for own in report["baselines"]) and not _has_encoder(report):
        found.append(
            "--encoder.pretrained MODEL measures a pretrained encoder too: MODEL is the folder of a model of "
            "sentence-transformers"
        )
    mixture = next((name for name, own in report["recipes"].items() if own["fits"] and name.endswith("-mol")), None)
    if mixture is not None and report["compared"] is None and not report["problems"]:
        found.append(
            f"--compare {mixture} trains that recipe and a dot product of as many numbers, both for a few steps, and "
            "says which finds more"
        )
    for own in (report["times"] or {}).values():
        if own is not None:
            found.append(
                f"times are of one worker with one thread; {own['num_cores']} cores here had a load average of "
                f"{own['load']:.1f}; validation is not counted"
            )
            break
    if report["ignored"] and report["problems"]:
        found.append(f"files that belong to no table, perhaps misnamed: {', '.join(report['ignored'])}")
    return found


def _has_encoder(report: Mapping[str, Any]) -> bool:
    return any(own["name"].startswith("pretrained ") for own in report["baselines"])


def _of_splits(report: Mapping[str, Any]) -> list[str]:
    found, splits = [], report["splits"]
    if not splits["valid"]:
        found.append("no query has split valid: every tenth training query is held out")
    read = next(facts["queries"] for name, facts in report["facts"].items() if name != "history")
    left_out = sum(splits.values()) - sum(read[split] for split in splits)
    if left_out:
        found.append(f"{left_out:,} of {sum(splits.values()):,} queries have no relevant item and are left out")
    return found


def _of_facts(facts: Mapping[str, Any]) -> list[str]:
    found, num_items = [], facts["items"]["num"]
    if "queries" not in facts:
        return ["there are no queries with relevance: nothing can be trained or measured"]
    relevance = facts["relevance"]
    if relevance["items_without_query"]:
        found.append(f"{relevance['items_without_query']:,} of {num_items:,} items answer no query of any split")
    repeated = facts["queries"].get("test_text_in_training_fraction", 0)
    if repeated:
        found.append(f"{repeated:.1%} of the test queries have the text of a training query")
    for what in ("items", "queries"):
        zeros = facts[what].get("vectors", {}).get("zero_fraction", 0)
        if zeros:
            found.append(f"{zeros:.2%} of the vectors of {what} are zero: items are found last, queries refused")
    if "histories" in facts:
        found += _of_histories(facts["histories"])
    return found


def _of_histories(own: Mapping[str, Any]) -> list[str]:
    """Sentences on short histories, ties and duplicates."""
    found, who, column = [], _who(own), own["sorted_by"]
    num_single, num_short = own["num_single_users"], own["num_short_users"]
    if num_short > num_single:
        found.append(f"{num_short - num_single:,} {who}s have 2 interactions: they train, and test nothing")
    if num_single:
        found.append(f"{num_single:,} {who}s have 1 interaction: they neither train nor test")
    if own["num_ties"] and own["num_ties"] == own["interactions"] - own["users"]:
        found.append(
            f"all interactions of a {who} have the same {column}, so that only the order of the rows orders a "
            f"history: give each {who}'s interactions different values of {column}"
        )
    if own["num_duplicates"]:
        found.append(
            f"{own['num_duplicates']:,} interactions have {who}, item and {column} of an earlier one: leave them out, "
            "or they count twice"
        )
    return found
