"""One shard in the versions that are wanted of it: the one that answers, and another one while that takes over."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rails_ray.errors import RailsRayError
from rails_ray.families.version import Version
from rails_ray.serving.gpu_room import check_gpu_room
from rails_ray.serving.heap import trim
from rails_ray.serving.missing_files import missing_bytes
from rails_ray.serving.room import check_room
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage.filesystem import Storage

LEASE_S = 60.0  # that a version stays after it was last wanted: twice what a request may take
RETRY_S = 60.0  # before a version that could not be loaded is loaded again


@dataclass
class HeldVersion:
    """
    search: the shard in this version.
    wanted_at: when it was last wanted, by the clock.
    """

    version: Version
    search: ShardSearch
    wanted_at: float

    @property
    def identity(self) -> str:
        """`Manifest.contents_sha256` of the version."""
        return self.version.manifest.contents_sha256


class HeldVersions:
    """The versions of a shard that are loaded, and those that are being loaded, each in a thread.

    Args:
        first: name of the version to begin with; None for the current one.
        share: part of a GPU that this process may take.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if a file of it differs from its manifest.
        UnavailableError: if the GPU has no room for it.
    """

    def __init__(
        self,
        storage: Storage,
        shard: int,
        first: str | None,
        device: str = "cpu",
        share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._shard, self._clock = storage, shard, clock
        self._device, self._share = device, share
        self._loading, self._lock = dict[str, threading.Thread](), threading.Lock()
        self._refused = dict[str, tuple[str, float]]()  # why, and when
        opened = Version.published(storage, first)
        check_gpu_room(opened, {shard: None}, device, share)
        self.newest = HeldVersion(opened, ShardSearch(opened, shard, device), clock())
        self._held = {self.newest.identity: self.newest}

    def of(self, identity: str) -> ShardSearch | None:
        """The shard in a version; None if that is not loaded."""
        held = self._held.get(identity)
        return None if held is None else held.search

    def want(self, name: str) -> HeldVersion | str | None:
        """Take note that a version is wanted, and load it in the background if it is not there. Versions that nobody
        has wanted for LEASE_S go.

        Returns:
            The version, or why it cannot be loaded; None while it is being loaded.
        """
        with self._lock:
            now = self._clock()
            self._drop(now)
            held = next((own for own in self._held.values() if own.version.name == name), None)
            if held is not None:
                held.wanted_at = now
                return held
            reason, refused_at = self._refused.get(name, (None, now))
            if reason is not None and now - refused_at < RETRY_S:
                return reason
            if name not in self._loading:
                load = threading.Thread(target=self._load, args=(name,), name=f"load {name}", daemon=True)
                self._loading[name] = load
                load.start()
            return None

    def _load(self, name: str) -> None:
        former = self.newest
        try:
            version = Version.published(self._storage, name)
            num_shards, own = version.num_shards, former.version.num_shards
            if num_shards != own:
                raise ValueError(f"version {name} must have {own} shards, got {num_shards}: deploy it anew")
            check_room(missing_bytes(version, self._shard, former.search), name)
            check_gpu_room(version, {self._shard: former.search}, self._device, self._share)
            search = ShardSearch(version.after(former.version), self._shard, self._device, former.search)
            with self._lock:
                self.newest = HeldVersion(version, search, self._clock())
                self._held[self.newest.identity] = self.newest
                self._refused.pop(name, None)
                del self._loading[name]
            trim()
        except Exception as error:  # whatever it is, routers learn of it, and the others go on
            kind = "" if isinstance(error, RailsRayError | ValueError) else f"{type(error).__name__}: "
            with self._lock:
                self._refused[name] = f"{kind}{error}", self._clock()
                self._loading.pop(name, None)

    def _drop(self, now: float) -> None:
        gone = [
            identity for identity, own in self._held.items() if now - own.wanted_at > LEASE_S and own is not self.newest
        ]
        for identity in gone:
            del self._held[identity]
        if gone:
            trim()
