"""All that a look at a data set says, as plain JSON values."""

import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rails_ray.cli.inspecting import advice, baselines, facts, tables, timing
from rails_ray.cli.inspecting.baselines import Baseline
from rails_ray.cli.inspecting.problems import problems
from rails_ray.cli.inspecting.readings import Reading, readings
from rails_ray.cli.inspecting.tables import Survey
from rails_ray.cli.inspecting.verdicts import Verdict, is_for_packaged, verdict
from rails_ray.data.dataset import DataSet
from rails_ray.data.forms.numbers import check_compared, mapped_vectors
from rails_ray.data.queries import DenseRows
from rails_ray.data.sources import NAMES, Sources
from rails_ray.errors import NotFoundError
from rails_ray.families.advising import compare
from rails_ray.families.recipes import by_name, names
from rails_ray.families.training_family import TrainingFamily, training_family
from rails_ray.storage.filesystem import Storage

FORMAT = 1  # of the report as JSON; docs/data.md has its keys
NUM_TIMED = 2  # recipes of a reading whose training is timed: the first that fit, in the order of their list
STEPS = ("tables", "data", "facts", "baselines", "timing", "comparison")
OnProgress = Callable[[int, int, str], None]


def inspect(
    sources: Sources,
    *,
    num_sampled: int,
    has_timing: bool,
    exclude_seen: bool | None = None,
    pretrained: str | None = None,
    compared: str | None = None,
    on_progress: OnProgress = lambda done, total, note: None,
) -> dict[str, Any]:
    """Report on what a data set is, what is wrong with it, which recipes fit, what they take and what they must beat.

    Args:
        num_sampled: texts and vectors that are looked at, at most.
        has_timing: whether to time the recipes that fit.
        exclude_seen: whether answers exclude the items of a query's history; None: nobody chose, so they do.
        pretrained: folder of an encoder to measure on the test queries, if the data are texts.
        compared: recipe of a mixture to compare with a dot product, unless the data have problems.
        on_progress: called with the steps done, all steps, and a note on the next.

    Raises:
        NotFoundError: if there is no table at all.
        ValueError: if an encoder is given, and the data are no texts or its folder has no model; or if the recipe to
            compare does not fit, or has no mixture to compare.
    """
    if compared is not None and _family(compared).as_dot_product() is None:  # raises if there is no such recipe
        raise ValueError(
            f"--compare must name a recipe with a mixture of trained components, stored as floats, got {compared}"
        )

    def step(number: int) -> None:
        on_progress(number, len(STEPS), STEPS[number])

    step(0)
    surveyed, ignored = tables.survey(sources), tables.other_files(sources)
    if not surveyed:
        raise NotFoundError(f"{sources} must hold a table of {', '.join(NAMES)}, got {', '.join(ignored) or 'none'}")
    step(1)
    looked = _looked(sources, surveyed, exclude_seen)
    if not looked.problems:
        sources.note_unused()
    step(2)
    verdicts = _verdicts(looked, num_sampled)
    if compared is not None and not looked.problems and not verdicts[compared].fits:
        raise ValueError(f"--compare must name a recipe that fits the data, got {compared}: {verdicts[compared].why}")
    described = {
        own[0].name: facts.of(data, num_sampled, sources, _weight_column(sources, own)) for own, data in looked.groups()
    }
    report: dict[str, Any] = {
        "format": FORMAT,
        "folder": str(sources),
        "tables": {name: _of_table(own) for name, own in surveyed.items()},
        "ignored": ignored,
        "readings": {
            name: {"fits": name in looked.read and not own, "lacks": own} for name, own in looked.lacks.items()
        },
        "problems": looked.problems,
        "notes": sources.notes,
        "facts": described,
        "splits": facts.splits(sources) if looked.has_queries() else None,
        "recipes": {name: dict(vars(own)) for name, own in verdicts.items()},
        "try_first": _try_first(sources, looked, described, verdicts),
    }
    step(3)
    found = [one for own, data in looked.groups() for one in _baselines(own, data, verdicts)]
    if pretrained is not None and not looked.problems:
        found += _of_encoder(pretrained, looked)
    report["baselines"] = [one.to_dict() for one in found]
    step(4)
    report["times"] = _times(looked, verdicts) if has_timing else None
    step(5)
    report["compared"] = None if compared is None or looked.problems else _compared(compared, looked)
    on_progress(len(STEPS), len(STEPS), "done")
    return report


@dataclass(frozen=True)
class Looked:
    """
    lacks: the tables and columns that each reading lacks, by its name.
    read: what was read, by the name of the reading; items alone, without queries, if that is all there is.
    """

    readings: list[Reading]
    lacks: dict[str, list[str]]
    read: dict[str, DataSet]
    problems: list[str]

    def groups(self) -> list[tuple[list[Reading], DataSet]]:
        """The readings that share what was read: one that needs less than another does."""
        found = dict[int, list[Reading]]()
        for own in self.readings:
            if own.name in self.read:
                found.setdefault(id(self.read[own.name]), []).append(own)
        return [(own, self.read[own[0].name]) for own in found.values()]

    def has_queries(self) -> bool:
        """Return whether queries of a table were read."""
        there = (own for own in self.readings if own.name in self.read and not self.lacks[own.name])
        return any("queries" in own.columns for own in there)


def _looked(sources: Sources, surveyed: dict[str, Survey], exclude_seen: bool | None) -> Looked:
    """Read the data in each way that their columns allow, or else find out what is wrong."""
    own, wrong = readings(), list[str]()
    looked = Looked(own, {reading.name: reading.lacks(surveyed) for reading in own}, {}, wrong)
    for reading in own:
        more = (other.name for other in own if other.form_name == reading.form_name and other.name in looked.read)
        shared, lacks = next(more, None), looked.lacks[reading.name]
        if lacks and not reading.can_do_with_items(lacks):
            continue
        if shared is not None:
            looked.read[reading.name] = looked.read[shared]
            continue
        try:
            read = _items_alone(sources, reading) if lacks else reading.form.read(sources)
            looked.read[reading.name] = read.choosing(exclude_seen)
        except ValueError as error:
            wrong += problems(sources, reading, surveyed, [str(error)])
    if all(looked.lacks.values()) and not looked.read and not wrong:
        nearest = min(
            own, key=lambda reading: (-len(reading.columns.keys() & surveyed.keys()), len(looked.lacks[reading.name]))
        )
        wrong += problems(sources, nearest, surveyed, _lacking(sources, nearest, surveyed))
    wrong[:] = dict.fromkeys(wrong)
    return looked


def _items_alone(sources: Sources, reading: Reading) -> DataSet:
    """Data without queries. The form leaves vectors of items to encoding then; here they are read too."""
    read = reading.form.read(sources, ())
    if not reading.item_columns:
        return read
    table = sources.open("items", reading.item_columns)
    vectors = DenseRows(mapped_vectors(table, reading.item_columns))
    check_compared(sources, "items", read.item_ids.column, vectors)
    return replace(read, item_inputs=vectors)


def _lacking(sources: Sources, nearest: Reading, surveyed: dict[str, Survey]) -> list[str]:
    """Return what training says of data that lack a table or a column, and then a sentence on each other table."""
    missing, found = sorted(nearest.columns.keys() - surveyed.keys()), list[str]()
    reads: list[Callable[[Sources], object]] = [nearest.form.read]
    for read in reads + [partial(Sources.table, name=name) for name in missing]:
        try:
            read(sources)
        except (ValueError, NotFoundError) as error:
            found.append(str(error))
    return found


def _weight_column(sources: Sources, own: list[Reading]) -> str:
    """The name of the column that has weights of training pairs, as its table has it."""
    name = "interactions" if "interactions" in own[0].columns else "relevance"
    return sources.column_of(name, "weight") if sources.has(name) else "weight"


def _of_table(own: Survey) -> dict[str, Any]:
    return {"files": own.num_files, "rows": own.num_rows, "bytes": own.size_bytes, "columns": list(own.columns)}


def _verdicts(looked: Looked, num_sampled: int) -> dict[str, Verdict]:
    """The verdict on each recipe, in the order of their list; those for the data in the package come last."""
    found = {}
    for reading in looked.readings:
        for recipe in reading.recipes:
            lacks = looked.lacks[reading.name]
            if reading.name in looked.read and (not lacks or recipe in reading.untrained):
                found[recipe] = verdict(_family(recipe), looked.read[reading.name], num_sampled)
            elif lacks:
                found[recipe] = Verdict(False, f"the data lack {', '.join(lacks)}")
            else:
                found[recipe] = Verdict(False, "training refuses the data: see the problems")
    return {recipe: found[recipe] for recipe in sorted(names(), key=lambda recipe: is_for_packaged(_family(recipe)))}


def _family(recipe: str) -> TrainingFamily:
    return training_family(by_name(recipe))


def _fitting(own: list[Reading], verdicts: dict[str, Verdict]) -> list[TrainingFamily]:
    return [_family(recipe) for recipe in verdicts for one in own if recipe in one.recipes and verdicts[recipe].fits]


def _try_first(
    sources: Sources, looked: Looked, described: dict[str, facts.Facts], verdicts: dict[str, Verdict]
) -> list[str]:
    """Say what to try first on the data, in each way that they are read."""
    folder, found = "FOLDER" if sources.folder is None else shlex.quote(str(sources)), list[str]()
    for own, _ in looked.groups():
        fits = [one.config.name for one in _fitting(own, verdicts)]
        found += advice.first(described[own[0].name], fits, folder)
    return found


def _baselines(own: list[Reading], read: DataSet, verdicts: dict[str, Verdict]) -> list[Baseline]:
    """The recipes that train nothing, or popularity; nothing without queries."""
    if not len(read.queries["test"]):
        return []
    plain = [one for one in _fitting(own, verdicts) if not one.trains]
    return [baselines.untrained(one, read) for one in plain] or [baselines.popularity(read)]


def _of_encoder(folder: str, looked: Looked) -> list[Baseline]:
    """Figures of a pretrained encoder."""
    read = looked.read.get("text")
    if read is None or not len(read.queries["test"]):
        got = f"data that are read as {', '.join(looked.read)}" if read is None else "items alone"
        raise ValueError(f"--encoder.pretrained needs texts of items and of test queries, got {got}")
    return baselines.pretrained(folder, _family("baseline-bm25"), read)


def _times(looked: Looked, verdicts: dict[str, Verdict]) -> dict[str, dict[str, Any] | None]:
    """By recipe; None for a model that is too large to be built here."""
    found = dict[str, dict[str, Any] | None]()
    for own, read in looked.groups():
        trained = [one for one in _fitting(own, verdicts) if one.trains and not is_for_packaged(one)]
        for one in trained[:NUM_TIMED]:
            name = one.config.name
            found[name] = timing.timed(one, read).to_dict() if timing.can_be_timed(one, read) else None
    return found


def _compared(recipe: str, looked: Looked) -> dict[str, Any]:
    """Compare the mixture of a recipe that fits with a dot product of as many numbers."""
    own = _family(recipe)
    [read] = [data for readings, data in looked.groups() if any(recipe in one.recipes for one in readings)]
    with tempfile.TemporaryDirectory(prefix="rails-ray-") as folder:
        found = compare(training_family(own.completed(read)), read, Storage(folder))
    assert found is not None
    return {**found.to_dict(), "sentence": found.sentence}
