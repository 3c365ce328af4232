"""A heavy ranker that is not there, or code that is not allowed: the server says so, and does not start."""

from pathlib import Path

import pytest

from rails_ray.errors import UnavailableError
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import DeploymentSize, ServeArgs
from rails_ray.schema.deployment import RankerArgs, RankerPlacement
from support.ports import free_port
from support.served_version import AtUrl
from support.stored_code import OF_TEXTS, publish_with_encoder

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.usefixtures("no_serve")]


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
    placement = DeploymentSize(ranker=RankerPlacement(num_cpus=0.1))
    with (
        pytest.raises(UnavailableError, match=f"ranker must be the import path of a callable.*{told}"),
        served(args, placement, port=free_port()),
    ):
        pass


def test_the_versions_own_ranker_is_called_where_it_is_allowed(rbe_root: Path) -> None:
    args = ServeArgs(storage=str(rbe_root), allow_anonymous=True)
    placement = DeploymentSize(ranker=RankerPlacement(num_cpus=0.1))
    with (
        pytest.raises(ValueError, match=r"^version v1 names the ranker .*by_pairs', code that this process is not"),
        served(args, placement, port=free_port()),
    ):
        pass
    allowed = args.model_copy(update={"allow_code": ["support"]})
    with served(allowed, placement, port=free_port()) as url:
        [result] = AtUrl(url).search(queries=[{"text": "red hat"}], k=3, budget={"calls": 30}).json()["results"]
    assert result["budget"]["is_reranked"]


def test_the_versions_own_encoder_is_called_where_it_is_allowed(tmp_path: Path) -> None:
    """By the router, which is in another process than what deploys it."""
    publish_with_encoder(tmp_path / "s", OF_TEXTS.function)
    args = ServeArgs(storage=str(tmp_path / "s"), allow_anonymous=True)
    with (
        pytest.raises(ValueError, match=r"^version v1 names the encoder function .*:encode', code that this process"),
        served(args, port=free_port()),
    ):
        pass
    with served(args.model_copy(update={"allow_code": ["support"]}), port=free_port()) as url:
        answer = AtUrl(url).search(queries=[{"text": "red hat"}], k=3, cutoff={"top_k": 3})
    assert len(answer.json()["results"][0]["items"]) == 3
