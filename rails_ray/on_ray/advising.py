"""Compare a run's mixture with a dot product of as many numbers, in one task on the cluster."""

from collections.abc import Sequence

from rails_ray.allowed_code import AllowedCode
from rails_ray.families import advising, config
from rails_ray.families.advising import MixtureComparison
from rails_ray.families.data import read_data
from rails_ray.families.training_family import training_family
from rails_ray.on_ray.progress import OnProgress, in_task
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage


def compare(
    storage: str, run: str, *, allow_code: Sequence[str] = (), on_progress: OnProgress | None = None
) -> MixtureComparison | None:
    """Compare the mixture of a finished run with a dot product, both trained anew for a tenth of its steps. None if it
    has no mixture. The run is read, and stays as it is.

    Args:
        allow_code: as in `local.open`.
        on_progress: called a few times a second.

    Raises:
        NotFoundError: if there is no finished run of this name.
        ValueError: if its data cannot be read, or its config names code that is not allowed.
    """
    store = Storage(storage)
    own = config.from_json(runs.read(store, run).config)
    if training_family(own).as_dot_product() is None:
        return None
    return in_task(_compare, str(store), run, AllowedCode.given(allow_code), on_progress=on_progress)


def _compare(storage: str, run: str, allowed: AllowedCode) -> MixtureComparison | None:
    store = Storage(storage)
    own = config.from_json(runs.read(store, run).config)
    family = training_family(own, allowed.read_by(f"run {run}", storage))
    return advising.compare(family, read_data(own, store), store)
