"""A storage with versions of few vectors, and what is left of it after a collection."""

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from oracles.versions import files_named
from rails_ray import local
from rails_ray.families import changing
from rails_ray.families.given_items import given_items
from rails_ray.storage import live_ids, parts, versions
from rails_ray.storage.collecting import Collected, collect
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.garbage import RetentionPolicy

WIDTH, NUM_BASE = 4, 20
NONE_MORE = RetentionPolicy(keep=0)


def vectors_of(seeds: list[int]) -> NDArray[np.float32]:
    return np.stack([np.random.default_rng(seed).standard_normal(WIDTH) for seed in seeds]).astype(np.float32)


def build(storage: Storage, version: str, seed: int = 0, index: str = "flat") -> None:
    """A version of items whose vectors are those of their numbers."""
    seeds = list(range(seed, seed + NUM_BASE))
    local.build(vectors_of(seeds), [f"i{own}" for own in seeds], folder=str(storage), version=version, index=index)


def add(storage: Any, *seeds: int) -> str:
    """Returns the version with these items."""
    items = given_items(vectors_of(list(seeds)), [f"i{own}" for own in seeds])
    return changing.add(storage, items, replaces=True).manifest.version


def cut_off(storage: Storage, version: str, seed: int) -> None:
    """An encoding that wrote a part and its record, and no more."""
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(parts, "finish", _interrupted)
        build(storage, version, seed)


def _interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def delete_all(storage: Any, policy: RetentionPolicy = NONE_MORE, **options: Any) -> Collected:
    return collect(storage, policy, may_be_most=True, **options)


def known(storage: Storage) -> dict[str, str]:
    return {own.version: own.state for own in versions.listed(storage)}


def files(storage: Storage) -> set[str]:
    """All files of versions."""
    return {*storage.walk("versions"), *storage.walk("objects")}


def assert_whole(storage: Storage, version: str) -> None:
    """Check each byte of a version and open it."""
    found = versions.read_manifest(storage, version)
    assert [own for own in versions.damages(storage, found) if own] == []
    assert live_ids.check_balance(storage, found) is None
    assert len(local.open(str(storage), version).search(vectors_of([1]), k=3).results[0].items) == 3


def files_of(storage: Storage, version: str) -> set[str]:
    """By its records, as plain JSON."""
    found = {*storage.walk(f"versions/{version}")}
    for path in list(found):
        if path.endswith(".json"):
            record = json.loads(storage.read(path))
            base = record.get("base") or version if isinstance(record, dict) else version
            found |= files_named(record, f"versions/{base}") & files(storage)
    return found
