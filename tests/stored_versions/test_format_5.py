"""Versions and runs that an earlier state of the library (commit 301e6df) has stored are read, and answer as then.

`format-5.tar.xz` holds a storage as that state left it: runs of each family, versions with each kind of index, codes
and a surrogate, two calibrations, the data that they were made from, and `answers.json`: what each version found then.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rails_ray import local
from rails_ray.families.config import DataConfig, from_json
from rails_ray.families.version import Version
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage

ARCHIVE = Path(__file__).parent / "format-5.tar.xz"
NUM_VERSIONS = 12
DECIMALS = 6  # of the scores that are kept


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        archive.extractall(folder)
    return folder / "format-5"


def expected() -> dict[str, list[dict[str, Any]]]:
    with tarfile.open(ARCHIVE) as archive:
        file = archive.extractfile("format-5/answers.json")
        assert file is not None
        answers: dict[str, list[dict[str, Any]]] = json.load(file)
        return answers


def searches() -> Iterator[Any]:
    """One for each version and way to search."""
    for version, answers in expected().items():
        for answer in answers:
            how = answer.get("method") or str(answer.get("budget") or answer.get("cutoff"))
            yield pytest.param(version, answer, id=f"{version} {how}")


def check(storage: Path, version: str, answer: dict[str, Any]) -> None:
    asked = {name: value for name, value in answer.items() if name not in ("queries", "items", "scores")}
    found = local.open(str(storage), version, allow_code=["support.ranked"]).search(answer["queries"], **asked)
    assert [result.items for result in found.results] == answer["items"]
    for result, scores in zip(found.results, answer["scores"], strict=True):
        np.testing.assert_allclose(result.scores, scores, rtol=0, atol=2 * 10**-DECIMALS)


@pytest.mark.parametrize(("version", "answer"), list(searches()))
def test_a_stored_version_answers_as_it_did(storage: Path, version: str, answer: dict[str, Any]) -> None:
    check(storage, version, answer)


def test_each_family_index_and_way_to_store_items_is_there(storage: Path) -> None:
    versions = [Version.published(Storage(str(storage)), name) for name in expected()]
    assert len(versions) == NUM_VERSIONS
    assert {version.config.family.kind for version in versions} == {"dual_encoder", "solar", "bm25", "rbe"}
    assert all(version.manifest.format == 5 for version in versions)
    methods = {answer.get("method") for answers in expected().values() for answer in answers}
    assert methods >= {"two_pass", "gated", "ann", "surrogate", "lookup", "ivf_lookup", "inverted"}


@pytest.mark.cluster
def test_a_stored_run_is_encoded_as_it_was(storage: Path, ray_cluster: None) -> None:
    """Versions of today from runs of then answer like the versions of then."""
    from rails_ray import on_ray
    from rails_ray.storage.manifest import CONFIG, read_file
    from rails_ray.storage.versions import read_manifest

    store = Storage(str(storage))
    for version, answers in expected().items():
        manifest = read_manifest(store, version)
        config = f"runs/{manifest.run}/config.json"
        store.write(
            config, store.read(config).replace(b"/tmp/format-5", str(storage).encode())
        )  # where its data are now
        former = from_json(runs.read(store, manifest.run).config).data
        data = DataConfig(folder=former.folder)
        family = from_json(read_file(store, version, manifest.file(CONFIG))).family
        on_ray.encode(
            str(storage),
            manifest.run,
            version=f"{version}-again",
            num_shards=1,
            data=data,
            stored=stored_as(family),
            allow_code=["support.ranked"],
        )
        on_ray.publish(str(storage), f"{version}-again")
        for answer in answers:
            if {"top_k", "score"} & answer["cutoff"].keys():  # others rest on a calibration, which is not made again
                check(storage, f"{version}-again", answer)


def stored_as(family: Any) -> dict[str, Any]:
    """How a version of this config stores its items."""
    if family.kind != "dual_encoder":
        return {}
    stored = {"items": family.items}
    if family.surrogate.kind != "none":
        stored["surrogate"] = {"kind": family.surrogate.kind, "width": family.surrogate.width}
    if family.index != FlatConfig():
        stored |= {"index": family.index, "index_of": family.index_of}
    return stored
