"""Evaluate a run or a version on held-out queries, or compare two versions' answers, in one task on the cluster."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from rails_ray.allowed_code import AllowedCode
from rails_ray.data.queries import SPLITS
from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.families import calibrations, config
from rails_ray.families.config import DataConfig
from rails_ray.families.data import read_data
from rails_ray.families.training_family import training_family
from rails_ray.families.version import Version
from rails_ray.families.version_queries import VersionQueries, with_data_of
from rails_ray.on_ray.nodes import check_shared
from rails_ray.on_ray.progress import OnProgress, in_task
from rails_ray.serving.churn import AnswersDiff, compare_answers
from rails_ray.serving.cutoffs import Cutoffs
from rails_ray.serving.measuring import usual_searches
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation import report
from rails_ray.training.evaluation.report import Report


def evaluate(
    storage: str,
    *,
    run: str | None = None,
    version: str | None = None,
    split: str = "test",
    data: DataConfig | None = None,
    allow_code: Sequence[str] = (),
    with_searches: bool = False,
    on_progress: OnProgress | None = None,
) -> Report:
    """Evaluate a run's model, or a stored version, published or not; by default the current version.

    A relevant item that a version lacks counts as not found.

    Args:
        data: data to evaluate on; by default the data in the config of the run or version.
        allow_code: as in `local.open`.
        with_searches: measure the methods of a version too, on some of the queries.
        on_progress: called a few times a second.

    Raises:
        NotFoundError: if there is no such run or version.
        DamagedError: if the version's files differ from its manifest.
        ValueError: if both a run and a version are given, if the split is not "train", "valid" or "test", or if
            the model cannot read the data's queries, the config names code that is not allowed, or a node does not
            find the local folder of storage or data.
    """
    if run is not None and version is not None:
        raise ValueError(f"give a run or a version to evaluate, got run {run!r} and version {version!r}")
    check_split(split)
    store, allowed = Storage(storage), AllowedCode.given(allow_code)
    check_shared(str(store), data_folder(store, data, run=run, version=version))
    how = (split, data, allowed, with_searches)
    return in_task(_evaluate, str(store), run, version, *how, on_progress=on_progress)


def answers_diff(
    storage: str,
    first: str,
    second: str,
    *,
    k: int,
    allow_code: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> AnswersDiff:
    """Compare what two versions, published or not, answer, without `churn_of_common`.

    Args:
        k: length of lists.
        allow_code: as in `local.open`.
        on_progress: called a few times a second.

    Raises:
        NotFoundError, DamagedError, UnsupportedError, ValueError: as `serving.churn.compare_answers`.
    """
    both, store = (first, second, k, AllowedCode.given(allow_code)), str(Storage(storage))
    check_shared(store)
    return in_task(_answers_diff, store, *both, on_progress=on_progress)


def _answers_diff(storage: str, first: str, second: str, k: int, allowed: AllowedCode) -> AnswersDiff:
    one, other = (Version.encoded(Storage(storage), name, allowed) for name in (first, second))
    return compare_answers(one, other, [k])


def data_folder(
    storage: Storage, data: DataConfig | None, *, run: str | None = None, version: str | None = None
) -> Iterator[str | None]:
    """The folder of the data that are named or, when it is asked for, of those of a run or version. If that cannot be
    read there is none, as what is asked next says so."""
    if data is not None and data.folder is not None:
        yield data.folder
        return
    with suppress(NotFoundError, DamagedError):
        if run is not None:
            yield config.from_json(runs.read(storage, run).config).data.folder
        else:
            yield Version.encoded(storage, version).config.data.folder


def check_split(split: str) -> None:
    """Raises:
    ValueError: if there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")


def _evaluate(
    storage: str,
    run: str | None,
    version: str | None,
    split: str,
    data_config: DataConfig | None,
    allowed: AllowedCode,
    with_searches: bool,
) -> Report:
    store = Storage(storage)
    if run is not None:
        found = runs.read(store, run)
        run_config, cutoff_mass = config.from_json(found.config), found.cutoff_mass
        run_config = with_data_of(run_config, data_config)
        data, of_run = (
            read_data(run_config, store, [split]),
            training_family(run_config, allowed.read_by(f"run {run}", storage)),
        )
        of_run.check_can_be_asked(data)
        model = of_run.trained_model(runs.weights(store, found))
        items = of_run.run_items(store, run, model, data)
        distribution = of_run.cutoff_support.distribution()
        return report.evaluate(model, items, data.queries[split], split, cutoff_mass, distribution)
    own = VersionQueries.read(store, version, data_config, [split], allowed)
    stored = calibrations.read_current(store, own.version)
    cutoffs = Cutoffs.of(training_family(own.config).cutoff_support, len(own.items), own.cutoff_mass, stored)
    mass = cutoffs.version_mass
    queries = own.queries(split)
    measured = report.evaluate(
        own.model,
        own.items,
        queries,
        split,
        mass,
        None if mass is None else cutoffs.distribution(),
        cutoffs.calibration,
    )
    if not with_searches:
        return measured
    opened = Version.encoded(store, own.version, allowed)
    return replace(measured, searches=usual_searches(opened, own.model, queries, split))
