"""When a second replica of a shard is asked beside a slow one, and how often."""

import asyncio
import time
from math import inf
from typing import Literal

import numpy as np
import pytest

from rails_ray.on_ray.serving.transport import replicas as direct
from rails_ray.on_ray.serving.transport.codec import question
from rails_ray.on_ray.serving.transport.frames import ANSWER, frame
from rails_ray.on_ray.serving.transport.listener import Address
from rails_ray.on_ray.serving.transport.replicas import Patience, Replicas
from support.direct_calls import MESSAGE, Handle, Replica, asked, direct_to, run, until


class Hasty(Patience):
    """Asks a second replica after 50 ms, as often as it may."""

    def __init__(self, num_left: int) -> None:
        self.num_left = num_left

    @property
    def second_s(self) -> float | None:
        return 0.05 if self.num_left > 0 else None

    @property
    def stuck_s(self) -> float:
        return inf

    def took(self, seconds: float) -> None:
        pass

    def spend(self) -> None:
        self.num_left -= 1


def test_a_call_that_takes_longer_than_others_is_asked_of_another_replica_too() -> None:
    async def scenario() -> None:
        slow, quick = Replica(), Replica()
        replicas = direct_to(Handle(slow, quick))
        replicas.patience = Hasty(1000)
        await replicas.look()
        slow.may_go_on.clear()
        for _ in range(40):
            answer = await replicas.ask("search", MESSAGE, 5)
            assert answer is not None
            assert answer.value.tolist() == [0, 2, 4]
        late = {own.num_late for own in replicas._known}
        assert max(late) >= direct.MOST_LATE, "it is asked last now"
        await replicas.look()
        assert {own.num_late for own in replicas._known} == {0}

    run(scenario)


def test_calls_under_way_together_share_what_may_be_asked_twice() -> None:
    async def scenario() -> None:
        one, other = Replica(most_at_once=100), Replica(most_at_once=100)
        replicas = direct_to(Handle(one, other))
        replicas.patience = hasty = Hasty(3)
        await replicas.look()
        for own in (one, other):
            own.may_go_on.clear()
        calls = [asyncio.create_task(replicas.ask("search", MESSAGE, 5)) for _ in range(30)]
        await until(lambda: one.ongoing + other.ongoing == 33)
        await asyncio.sleep(0.2)
        assert (one.ongoing + other.ongoing, hasty.num_left) == (33, 0)
        for own in (one, other):
            own.may_go_on.set()
        assert all(await asyncio.gather(*calls))

    run(scenario)


@pytest.mark.parametrize("num_known", [0, 500])
def test_a_replica_that_stands_still_costs_no_answer_though_nothing_is_left(
    num_known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "LEAST_STUCK_S", 0.1)
    monkeypatch.setattr(direct, "UNKNOWN_STUCK_S", 0.2)

    async def scenario() -> None:
        still, other = Replica(), Replica()
        replicas = direct_to(Handle(still, other))
        for _ in range(num_known):
            replicas.patience.took(0.001)
        while replicas.patience.second_s is not None:
            replicas.patience.spend()
        await replicas.look()
        still.may_go_on.clear()
        began, took = time.monotonic(), []
        for _ in range(20):
            answer = await replicas.ask("search", MESSAGE, 5)
            assert answer is not None
            took.append(time.monotonic() - began)
            began = time.monotonic()
        assert sum(seconds > 0.09 for seconds in took) <= direct.MOST_LATE, "then it is asked last"
        assert max(took) < 2

    run(scenario)


async def knowing_one_of_two() -> tuple[Replicas, Handle, Replica, Replica]:
    """A router that has looked when one of two replicas was up, and both."""
    known, came_later = Replica(), Replica()
    handle = Handle(known)
    replicas = direct_to(handle)
    await replicas.look()
    return replicas, handle, known, came_later


def test_a_replica_that_has_come_since_the_last_look_is_found_when_the_known_one_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct, "UNKNOWN_STUCK_S", 0.2)
    monkeypatch.setattr(direct, "LOOK_AGAIN_S", 0.0)

    async def scenario() -> None:
        replicas, handle, stands_still, came_later = await knowing_one_of_two()
        stands_still.may_go_on.clear()
        call = asyncio.create_task(asked(replicas, handle))
        await until(lambda: handle.num_looks > 2)
        assert not call.done()
        assert stands_still.num_asked == 1, "it is not asked again, as nobody else is there"
        handle.replicas.append(came_later)
        assert (await call).tolist() == [0, 2, 4]
        assert (handle.num_by_handle, came_later.num_asked) == (0, 1)
        await until(lambda: stands_still.num_cancelled == 1)

    run(scenario)


def test_serve_is_asked_while_the_only_replica_that_is_known_stands_still_and_nobody_says_who_else_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct, "UNKNOWN_STUCK_S", 1.0)
    monkeypatch.setattr(direct, "LOOK_AGAIN_S", 0.0)

    async def scenario() -> None:
        replicas, handle, stands_still, came_later = await knowing_one_of_two()
        handle.replicas, handle.is_silent = [came_later, stands_still], True
        stands_still.may_go_on.clear()
        for number in range(3):
            began = time.monotonic()
            assert (await asked(replicas, handle)).tolist() == [0, 2, 4]
            assert number == 0 or time.monotonic() - began < 1.0, "it is lost"
        assert (handle.num_by_handle, stands_still.num_asked) == (3, 1)
        handle.is_silent = False
        replicas.look_soon()
        await until(lambda: len(replicas._known) == 2)

    run(scenario)


@pytest.mark.parametrize("sent", [b"", b"".join(frame(1, ANSWER, 200, MESSAGE))[:-3]], ids=["nothing", "half"])
def test_a_connection_that_stalls_costs_no_answer(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica reads ten bytes, sends nothing or half of an answer, and keeps its connection open."""
    monkeypatch.setattr(direct, "UNKNOWN_STUCK_S", 0.2)
    monkeypatch.setattr(direct, "LOOK_AGAIN_S", 60.0)
    monkeypatch.setattr(direct.random, "random", lambda: 0.0)  # of two with as many calls, the first is asked

    async def scenario() -> None:
        read, over, has_ended = list[bytes](), asyncio.Event(), asyncio.Event()

        async def stalls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            read.append(await reader.read(10))
            writer.write(sent)
            await over.wait()
            writer.close()
            has_ended.set()

        server = await asyncio.start_server(stalls, "127.0.0.1", 0)
        stalled = Address(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", "key", "ours")
        other = Replica()
        replicas = direct_to(Handle(stalled, other))
        await replicas.look()
        large = question("ours", [np.ones(2**20)])  # more than sockets hold
        for number in range(1, direct.MOST_LATE + 3):
            began = time.monotonic()
            answer = await replicas.ask("search", large, 5)
            assert answer is not None
            assert answer.value.sum() == 2**21
            assert time.monotonic() - began < 2
            num_late = max(own.num_late for own in replicas._known)
            assert num_late == min(number, direct.MOST_LATE), "then it is asked last"
            await until(lambda: not any(own.num_under_way for own in replicas._known))
        assert (len(read), other.num_asked) == (1, direct.MOST_LATE + 2)
        over.set()
        await has_ended.wait()
        server.close()
        await server.wait_closed()

    run(scenario)


def test_a_shard_that_is_slow_everywhere_is_not_asked_twice_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call takes longer than `stuck_s`, but its replica answers others meanwhile."""
    monkeypatch.setattr(direct, "UNKNOWN_STUCK_S", 1.0)

    async def scenario() -> None:
        one, other = Replica(most_at_once=2), Replica(most_at_once=2)
        replicas = direct_to(Handle(one, other))
        await replicas.look()
        for own in (one, other):
            own.may_go_on = Slow(0.3)
        answers = await asyncio.gather(*(replicas.ask("search", MESSAGE, 5) for _ in range(16)))  # 1.2 s for the last
        assert all(answers)
        assert one.num_asked + other.num_asked == 16

    run(scenario)


class Slow(asyncio.Event):
    """Waits so long each time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def wait(self) -> Literal[True]:
        await asyncio.sleep(self.seconds)
        return True


def test_what_comes_in_meanwhile_is_spent() -> None:
    async def scenario() -> None:
        slow, quick = Replica(), Replica()
        replicas = direct_to(Handle(slow, quick))
        replicas.patience = hasty = Hasty(0)
        await replicas.look()
        slow.may_go_on.clear()
        quick.may_go_on.clear()
        call = asyncio.create_task(replicas.ask("search", MESSAGE, 5))
        await asyncio.sleep(0.2)
        assert slow.ongoing + quick.ongoing == 1
        hasty.num_left = 1
        await until(lambda: slow.ongoing + quick.ongoing == 2)
        quick.may_go_on.set()
        assert (await call) is not None
        assert hasty.num_left == 0

    run(scenario)
