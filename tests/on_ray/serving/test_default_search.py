"""The default search of a version in an application: later replicas have the one that it began with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rails_ray.errors import DamagedError
from rails_ray.families import calibrations, default_searches
from rails_ray.on_ray.serving.app import application
from rails_ray.on_ray.serving.plan import DeploymentSize, ServeArgs
from rails_ray.schema.filters import canonical
from rails_ray.serving import client
from rails_ray.storage.filesystem import Storage
from support.calibrations import STORED
from support.default_searches import AVERAGE
from support.examples import publish_here
from support.one_serve import served


def pinned_args(root: Path, **given: Any) -> ServeArgs:
    made = application(ServeArgs(storage=str(root), allow_anonymous=True, **given), DeploymentSize())
    args: ServeArgs = made._bound_deployment.init_args[1]
    return args


def pinned(root: Path, **given: str) -> str | None:
    return pinned_args(root, **given).search


def test_an_application_names_the_file_that_it_began_with(tmp_path: Path) -> None:
    publish_here(tmp_path)
    store = Storage(str(tmp_path))
    assert pinned(tmp_path) == "none"
    default_searches.write(store, "v1", AVERAGE)
    first = default_searches.current(store, "v1")
    assert pinned(tmp_path) == first
    default_searches.write(store, "v1", replace(AVERAGE, method="two_pass", params={}))
    assert pinned(tmp_path) != first
    assert first is not None
    assert pinned(tmp_path, search=first) == first


def test_calibrations_too_unless_it_follows(tmp_path: Path) -> None:
    publish_here(tmp_path)
    store = Storage(str(tmp_path))
    args = pinned_args(tmp_path)
    assert (args.calibration, args.filter_calibrations) == ("none", [])
    for filter in (None, canonical({"year": 1})):
        calibrations.write(store, "v1", replace(STORED, filter=filter))
    default_searches.write(store, "v1", AVERAGE)
    args = pinned_args(tmp_path)
    assert args.calibration == calibrations.current(store, "v1")
    assert args.filter_calibrations == list(calibrations.of_filters(store, "v1"))
    following = pinned_args(tmp_path, follow_s=5.0)
    assert (following.calibration, following.filter_calibrations, following.search) == (None, None, None)


def test_a_damaged_one_starts_nothing(tmp_path: Path) -> None:
    publish_here(tmp_path)
    Storage(str(tmp_path)).write("versions/v1/search.json", b"{")
    with pytest.raises(DamagedError, match=r"search\.json must name a file, got None: choose again"):
        pinned(tmp_path)


@pytest.mark.cluster
@pytest.mark.long
def test_routers_answer_by_it(tmp_path: Path, ray_cluster: None) -> None:
    publish_here(tmp_path)
    default_searches.write(Storage(str(tmp_path)), "v1", AVERAGE)
    with served(ServeArgs(storage=str(tmp_path), allow_anonymous=True)) as url, client.Client(url) as server:
        default_searches.write(Storage(str(tmp_path)), "v1", replace(AVERAGE, method="two_pass", params={}))
        assert server.index()["search"]["params"] == AVERAGE.params
        answers = [server.search(["red"], k=4), server.search(["red"], k=4, method="average", num_candidates=12)]
        assert [own.method for own in answers] == ["average", "average"]
        assert answers[0].results == answers[1].results
        assert server.search(["red"], k=4, method="brute_force").method == "brute_force"
