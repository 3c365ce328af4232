"""From data to a current version: train -> encode -> calibrate -> evaluate -> publish, if the gates pass.

Each stage resumes what an earlier try under the same name left. A stage that has finished is skipped.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from rails_ray.errors import ConflictError, DamagedError, GateError, NotFoundError
from rails_ray.families import calibrations
from rails_ray.families.config import RunConfig, from_json, import_paths
from rails_ray.families.registry import served_family
from rails_ray.on_ray.calibrating import calibrate
from rails_ray.on_ray.encoding import encode
from rails_ray.on_ray.evaluating import answers_diff, evaluate
from rails_ray.on_ray.fitting import CHECKPOINT_S
from rails_ray.on_ray.progress import OnProgress
from rails_ray.on_ray.publishing import publish
from rails_ray.on_ray.resources import TrainResources
from rails_ray.on_ray.training import TIMEOUT_S, train
from rails_ray.storage import versions
from rails_ray.storage.described import Manifest
from rails_ray.storage.filesystem import Storage, timed_name
from rails_ray.storage.runs import Run
from rails_ray.training.evaluation.gates import Gates, churn_objection, objection
from rails_ray.training.evaluation.report import Report

Stage = Callable[[str], AbstractContextManager[OnProgress]]


@dataclass(frozen=True)
class Outcome:
    """
    report: report of the new version on the test queries.
    former: report of the version that was current before, on the same queries; None if no comparison was made.
    churn: churn@k against that version; None if no gate judges it, or no other version was current.
    """

    run: Run
    manifest: Manifest
    report: Report
    former: Report | None
    churn: float | None = None


@contextmanager
def _silent(name: str) -> Iterator[OnProgress]:
    yield lambda done, total, note: None


def pipeline(
    run_config: RunConfig,
    storage: str,
    *,
    run: str | None = None,
    num_workers: int = 2,
    use_gpu: bool | None = None,
    num_shards: int = 2,
    gates: Gates = Gates(),
    checkpoint_s: float = CHECKPOINT_S,
    timeout_s: float = TIMEOUT_S,
    placing: TrainResources = TrainResources(),
    allow_code: Sequence[str] = (),
    stage: Stage = _silent,
    on_report: Callable[[Report, Report | None], None] = lambda report, former: None,
) -> Outcome:
    """Make a version by a recipe, and publish it if it is good enough.

    Args:
        run: name of the run and of the version. Give the same name again to resume. By default the recipe's name and
            the time.
        use_gpu: as `train` takes it.
        placing: as `train` takes it.
        allow_code: as `train` takes it.
        stage: entered for each stage with its name; yields the callback for progress.
        on_report: called with the reports of the new version and of the current one before the gates decide.

    Raises:
        GateError: if the version is not good enough, or the current one cannot answer its queries. The new version
            is encoded then, and the former version stays current.
        ConflictError: if another version was published in the meantime.

    It also raises what `train`, `encode`, `calibrate`, `evaluate` and `publish` raise.
    """
    store, allow_code = Storage(storage), [*allow_code, *import_paths(run_config)]
    name = run or timed_name(run_config.name)
    with stage(f"train {name}") as on_progress:
        trained = train(
            run_config,
            storage,
            run=name,
            num_workers=num_workers,
            use_gpu=use_gpu,
            checkpoint_s=checkpoint_s,
            timeout_s=timeout_s,
            placing=placing,
            allow_code=allow_code,
            on_progress=on_progress,
        )
    with stage(f"encode {name}") as on_progress:
        encode(
            storage,
            name,
            version=name,
            num_shards=num_shards,
            use_gpu=use_gpu,
            allow_code=allow_code,
            on_progress=on_progress,
        )
    if (
        calibrations.current(store, name) is None
        and served_family(from_json(trained.config)).cutoff_support.has_bounded_scores
    ):
        with stage(f"calibrate {name}") as on_progress:
            calibrate(storage, version=name, allow_code=allow_code, on_progress=on_progress)
            on_progress(1, 1, "versions")
    with stage(f"evaluate {name}") as on_progress:
        report = evaluate(storage, version=name, allow_code=allow_code, on_progress=on_progress)
        current = _current(store)
        former = None
        if current not in (None, name) and gates.max_drop is not None:
            on_progress(1, 2, "versions")
            try:
                own = from_json(trained.config).data
                same = replace(own, exclude_seen=own.excludes_seen)  # whatever the current version chose
                former = evaluate(storage, version=current, data=same, allow_code=allow_code, on_progress=on_progress)
            except (DamagedError, NotFoundError, ValueError) as error:
                raise GateError(
                    f"version {current}, which is current, must answer the same queries, got: {error}: repair it, "
                    "or ignore it with --max-drop None"
                ) from error
        num_reports = 1 if former is None else 2
        on_progress(num_reports, num_reports, "versions")
    on_report(report, former)
    reason, churn = objection(gates, report, former), None
    if reason is None and gates.max_churn is not None and current not in (None, name):
        with stage(f"compare {name}") as on_progress:
            churn, reason = _churn(storage, current, name, gates.max_churn, gates.k, allow_code, on_progress)
            on_progress(1, 1, "versions")
    if reason is not None:
        raise GateError(f"version {name} must pass the gates to be published: {reason}")
    if _current(store) != current:
        raise ConflictError(
            f"version {current} must stay current while {name} is measured against it, got {_current(store)}: "
            "run the pipeline again"
        )
    with stage(f"publish {name}") as on_progress:
        manifest = publish(storage, name, on_file=lambda done, total: on_progress(done, total, "files"))
    return Outcome(trained, manifest, report, former, churn)


def _churn(
    storage: str,
    current: str,
    name: str,
    max_churn: float,
    k: int,
    allow_code: Sequence[str],
    on_progress: OnProgress,
) -> tuple[float | None, str | None]:
    """churn@k of a version against the current one, and what stands against it.

    Raises:
        GateError: if the current version cannot be read.
    """
    try:
        answers = answers_diff(storage, current, name, k=k, allow_code=allow_code, on_progress=on_progress)
    except (DamagedError, NotFoundError, ValueError) as error:
        raise GateError(
            f"version {current}, which is current, must answer the same queries, got: {error}: repair it, or leave "
            "--max-churn out"
        ) from error
    churn = None if answers.churn is None else answers.churn[k]
    return churn, churn_objection(max_churn, k, churn, answers.reason)


def _current(store: Storage) -> str | None:
    try:
        return versions.current_version(store)
    except NotFoundError:
        return None
