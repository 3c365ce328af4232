"""A version in the memory of one process, with all of its shards."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import torch

from rails_ray.families.version import Version
from rails_ray.serving.engine import Engine
from rails_ray.serving.golden import golden_search
from rails_ray.serving.gpu_room import check_gpu_room
from rails_ray.serving.held_shards import HeldShards
from rails_ray.serving.missing_files import missing_bytes
from rails_ray.serving.shard_search import ShardSearch


@dataclass(frozen=True)
class Loaded:
    """A version in memory."""

    version: Version
    engine: Engine
    shards: Sequence[ShardSearch]
    held: HeldShards
    since: datetime = field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def of(cls, version: Version, device: str, former: "Loaded | None" = None, **options: Any) -> "Loaded":
        """Load a version.

        Args:
            former: a version that is loaded, which this one shares what it can with.
            options: of the engine.

        Raises:
            UnavailableError: if the GPU has no room for it.
        """
        before = [None] * version.num_shards if former is None else former.shards_for(version)
        has_model = former is not None and version.has_model_of(former.version)
        check_gpu_room(version, dict(enumerate(before)), device, encodes=not has_model)
        engine = Engine(version, device=device, **options)
        shards = [ShardSearch(version, shard, device, before[shard]) for shard in range(version.num_shards)]
        engine.search_defaults.check(shards[0].searcher.methods)
        return cls(version, engine, shards, HeldShards(shards))

    def followed_by(self, version: Version) -> "Loaded":
        """Load another version of the same storage, with this one's options."""
        own = self.engine
        options = {"limits": own.limits, "cutoff": own.given_cutoff, "has_ranker": own.ranking.has_ranker}
        return Loaded.of(version.after(self.version), self.shards[0].device, self, **options)

    def check(self) -> None:
        """Answer an example query.

        Raises:
            DamagedError: if a score is no number.
        """
        self.held.advance(golden_search(self.engine))

    def bytes_to_load(self, version: Version) -> int:
        """The size of the files of another version that are to be loaded, as others are shared."""
        has_other_model = version.described.home != self.version.described.home
        files = version.described.files if has_other_model else []
        formers = enumerate(self.shards_for(version))
        return sum(entry.size_bytes for entry in files) + sum(
            missing_bytes(version, shard, former) for shard, former in formers
        )

    def shards_for(self, version: Version) -> "list[ShardSearch | None]":
        """The shard of each number, if it is there."""
        there = dict(enumerate(self.shards))
        return [there.get(number) for number in range(version.num_shards)]


def check_device(device: str) -> None:
    """Raises:
    ValueError: if torch knows no such device, or sees no such GPU.
    """
    num_gpus = torch.cuda.device_count()
    try:
        found = torch.device(device)
    except RuntimeError:  # a list of all that torch was ever built for
        found = None
    if found is None or (found.type == "cuda" and (found.index or 0) >= num_gpus):
        raise ValueError(f"device must be cpu, or cuda where torch sees a GPU (it sees {num_gpus}), got {device!r}")
