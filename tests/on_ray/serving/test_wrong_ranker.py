"""A heavy ranker that is not there: the server says so, and does not start."""

from pathlib import Path

import pytest

from rails_ray.errors import UnavailableError
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import Placement, RankerArgs, RankerPlacement, ServeArgs
from support.ports import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("support.ranked:nothing", "has no attribute 'nothing'"),
        ("no_such_module:rank", "No module named 'no_such_module'"),
        ("support.ranked:NUM_SUPPORTS", "which cannot be called"),
    ],
)
def test_a_wrong_import_path_does_not_start(rbe_root: Path, path: str, told: str) -> None:
    args = ServeArgs(storage=str(rbe_root), allow_anonymous=True, ranker=RankerArgs(path=path))
    placement = Placement(ranker=RankerPlacement(num_cpus=0.1))
    with (
        pytest.raises(UnavailableError, match=f"ranker must be the import path of a callable.*{told}"),
        served(args, placement, port=free_port()),
    ):
        pass
