"""Waiting until the replicas of each shard have a version that routers want."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rails_ray.errors import UnavailableError
from rails_ray.on_ray.serving.transport import shards as asking
from rails_ray.on_ray.serving.transport.listener import Address
from rails_ray.on_ray.serving.transport.replicas import Replicas
from rails_ray.on_ray.serving.transport.shards import Shards
from support.direct_calls import VALUES, Handle, Replica, run

OTHER = Address("tcp://127.0.0.1:9", "key", "others")
REFUSING = replace(OTHER, refused="part-0 must have the sha256 of its manifest, got another")


def waiting(*handles: Handle) -> Shards:
    return Shards(list(handles), "v2", "ours", 5, direct=[Replicas(handle, "ours", "v2") for handle in handles])


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LOOK_AGAIN_S", 0.01)


def test_replicas_are_told_which_version_is_wanted() -> None:
    async def scenario() -> None:
        one, other = Handle(Replica()), Handle(Replica())
        await waiting(one, other).ready()
        assert one.wanted == other.wanted == ("v2",)
        plain = Handle(Replica())
        await Replicas(plain, "ours").look()
        assert plain.wanted == ()

    run(scenario)


def test_all_replicas_that_load_the_version_are_waited_for() -> None:
    async def scenario() -> None:
        ours = Replica()
        first, second = Handle(ours, OTHER), Handle(Replica())
        ready = asyncio.create_task(waiting(first, second).ready())
        await asyncio.sleep(0.1)
        assert not ready.done(), "one is loading"
        first.replicas = [ours, REFUSING]
        await ready

    run(scenario)


def test_a_shard_that_refuses_and_one_that_never_gets_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        refused = "shard 1 refuses it: part-0 must have the sha256 of its manifest, got another"
        with pytest.raises(UnavailableError, match=refused):
            await waiting(Handle(Replica()), Handle(REFUSING)).ready()
        monkeypatch.setattr(asking, "READY_S", 0.1)
        never = "shard 0 must have a replica of version v2 within 0.1 s, got none"
        for missing in (Handle(OTHER), Handle(), Handle(RuntimeError("died"))):
            with pytest.raises(UnavailableError, match=never):
                await waiting(missing, Handle(Replica())).ready()

    run(scenario)


def test_a_replica_that_loads_for_ever_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "READY_S", 0.1)

    async def scenario() -> None:
        await waiting(Handle(Replica(), OTHER)).ready()

    run(scenario)


def test_a_former_version_is_left_with_its_last_call() -> None:
    async def scenario() -> None:
        replica = Replica()
        shards = waiting(Handle(replica))
        await shards.ready()
        replica.may_go_on.clear()
        call: Any = asyncio.create_task(shards.ask("search", VALUES))
        while not replica.ongoing:
            await asyncio.sleep(0.01)
        shards.leave()
        replica.may_go_on.set()
        [found] = await call
        assert found.tolist() == [0, 2, 4]

    run(scenario)
