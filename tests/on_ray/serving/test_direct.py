"""Shards asked directly: real HTTP between a listener and a router's side in one process, with Serve's part faked."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from types import SimpleNamespace
from typing import Any, Literal

import aiohttp
import numpy as np
import pytest
from ray.serve.exceptions import BackPressureError

from rails_ray.errors import BusyError
from rails_ray.on_ray.serving import direct
from rails_ray.on_ray.serving.asking import Shards
from rails_ray.on_ray.serving.direct import KEY, Address, Listener, Patience, Replicas
from rails_ray.on_ray.serving.frames import packed
from rails_ray.on_ray.serving.identity import Answer, of_identity

OPEN: list[Any] = []  # what `run` closes


class Replica:
    """Of a version; doubles what it is asked."""

    def __init__(self, identity: str = "ours", most_at_once: int = 8, most_waiting: int = 100) -> None:
        self.identity = identity
        self.num_asked = self.most_ongoing = self.num_cancelled = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.listener = Listener(self, identity, ["search"], most_at_once, most_waiting)
        OPEN.append(self.listener)
        self.ongoing = 0

    @of_identity
    async def search(self, values: np.ndarray) -> np.ndarray:
        self.num_asked += 1
        self.ongoing += 1
        self.most_ongoing = max(self.most_ongoing, self.ongoing)
        try:
            await self.may_go_on.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.ongoing -= 1
        if not len(values):
            raise ValueError("no values")
        return values * 2


class Handle:
    """Serve's handle of a shard with these replicas."""

    def __init__(self, *replicas: Any) -> None:
        self.replicas, self.num_by_handle, self.num_looks = list(replicas), 0, 0
        self.failure: Exception | None = None
        self.search = SimpleNamespace(remote=self._search)

    async def _search(self, identity: str, values: np.ndarray) -> Answer[Any]:
        self.num_by_handle += 1
        if self.failure is not None:
            raise self.failure
        return await self.replicas[0].search(identity, values)

    def broadcast(self, method: str) -> Any:
        assert method == "address"

        async def results_async(timeout_s: float, return_exceptions: bool) -> list[Any]:
            assert return_exceptions
            self.num_looks += 1
            return [
                own if isinstance(own, Exception | Address) else await own.listener.address() for own in self.replicas
            ]

        return SimpleNamespace(results_async=results_async)


VALUES = np.arange(3)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await scenario()
        finally:
            while OPEN:
                await OPEN.pop().close()

    asyncio.run(whole())


def direct_to(handle: Handle) -> Replicas:
    OPEN.append(Replicas(handle, "ours"))
    replicas: Replicas = OPEN[-1]
    return replicas


async def asked(replicas: Replicas, handle: Handle, *, within_s: float = 5) -> Any:
    (answer,) = await Shards([handle], "v2", "ours", within_s, direct=[replicas]).ask("search", VALUES)
    return answer


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.01)


def test_the_first_call_goes_by_handle_and_later_ones_directly() -> None:
    async def scenario() -> None:
        replica = Replica()
        handle = Handle(replica)
        replicas = direct_to(handle)
        assert (await asked(replicas, handle)).tolist() == [0, 2, 4]
        assert handle.num_by_handle == 1
        await until(lambda: bool(replicas._known))
        for _ in range(5):
            assert (await asked(replicas, handle)).tolist() == [0, 2, 4]
        assert (handle.num_by_handle, handle.num_looks, replica.num_asked) == (1, 1, 6)

    run(scenario)


def test_a_replica_of_another_version_is_not_asked() -> None:
    async def scenario() -> None:
        others, ours = Replica("others"), Replica()
        replicas = direct_to(Handle(others, RuntimeError("died"), ours))
        await replicas.look()
        for _ in range(4):
            answer = await replicas.ask("search", [VALUES])
            assert answer is not None
        assert (others.num_asked, ours.num_asked) == (0, 4)

    run(scenario)


def test_calls_go_to_the_replica_with_the_fewest_and_no_more_than_its_places_are_carried_out() -> None:
    async def scenario() -> None:
        one, other = Replica(most_at_once=3), Replica(most_at_once=3)
        replicas = direct_to(Handle(one, other))
        await replicas.look()
        for own in (one, other):
            own.may_go_on.clear()
        calls = [asyncio.create_task(replicas.ask("search", [VALUES])) for _ in range(10)]
        await until(
            lambda: one.listener.num_ongoing == other.listener.num_ongoing == 5 and one.ongoing == other.ongoing == 3
        )
        assert (one.ongoing, other.ongoing) == (3, 3)
        for own in (one, other):
            own.may_go_on.set()
        assert [answer is not None and answer.value.tolist() for answer in await asyncio.gather(*calls)] == [
            [0, 2, 4]
        ] * 10
        assert (one.most_ongoing, other.most_ongoing) == (3, 3)
        assert one.listener.num_ongoing == other.listener.num_ongoing == 0

    run(scenario)


def test_calls_beyond_those_that_may_wait_go_by_handle_whose_queue_is_bounded_too() -> None:
    async def scenario() -> None:
        replica = Replica(most_at_once=1, most_waiting=2)
        handle = Handle(replica)
        replicas = direct_to(handle)
        await replicas.look()
        replica.may_go_on.clear()
        calls = [asyncio.create_task(asked(replicas, handle)) for _ in range(3)]
        await until(lambda: replica.listener.num_ongoing == 3)
        calls.append(asyncio.create_task(asked(replicas, handle)))
        await until(lambda: handle.num_by_handle == 1)
        assert replica.listener.num_ongoing == 3
        handle.failure = BackPressureError(num_queued_requests=9, max_queued_requests=8)
        busy = await asked(replicas, handle)
        assert isinstance(busy, BusyError)
        assert str(busy) == "shard 0 must have a place for one more call, got a full queue: try again"
        replica.may_go_on.set()
        assert [(await call).tolist() for call in calls] == [[0, 2, 4]] * 4
        assert (await asked(replicas, handle)).tolist() == [0, 2, 4]  # it is not lost for having been full

    run(scenario)


def test_what_a_replica_refuses_is_told_as_by_handle() -> None:
    async def scenario() -> None:
        handle = Handle(Replica())
        replicas = direct_to(handle)
        await replicas.look()
        (refused,) = await Shards([handle], "v2", "ours", 5, direct=[replicas]).ask("search", np.zeros(0))
        assert isinstance(refused, ValueError)
        assert str(refused) == "no values"
        assert replicas._known, "it is up"

    run(scenario)


def test_where_nobody_listens_the_handle_is_asked_and_the_replicas_are_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct, "LOOK_AGAIN_S", 0.0)

    async def scenario() -> None:
        lost, replica = Address("http://127.0.0.1:9", "key", "ours"), Replica()
        handle = Handle(lost)
        replicas = direct_to(handle)
        await replicas.look()
        handle.replicas = [replica]
        assert (await asked(replicas, handle)).tolist() == [0, 2, 4]
        assert handle.num_by_handle == 1
        await until(lambda: bool(replicas._known))
        assert (await asked(replicas, handle)).tolist() == [0, 2, 4]
        assert (handle.num_by_handle, replica.num_asked) == (1, 2)

    run(scenario)


def test_a_replica_that_dies_during_a_call_or_answers_nonsense_is_passed_over() -> None:
    async def scenario() -> None:
        async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.close()

        async def lies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n\xc1\xc1\xc1")
            await writer.drain()
            writer.close()

        for behaviour in (dies, lies):
            server = await asyncio.start_server(behaviour, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            handle = Handle(Address(f"http://127.0.0.1:{port}", "key", "ours"))
            replicas = direct_to(handle)
            await replicas.look()
            handle.replicas = [Replica()]
            assert (await asked(replicas, handle)).tolist() == [0, 2, 4]
            assert handle.num_by_handle == 1
            server.close()
            await server.wait_closed()

    run(scenario)


def test_a_call_that_nobody_waits_for_any_more_is_given_up() -> None:
    async def scenario() -> None:
        replica = Replica(most_at_once=1)
        replicas = direct_to(Handle(replica))
        await replicas.look()
        replica.may_go_on.clear()
        calls = [asyncio.create_task(replicas.ask("search", [VALUES])) for _ in range(2)]
        await until(lambda: replica.listener.num_ongoing == 2 and replica.ongoing == 1)
        for call in calls:
            call.cancel()
        await until(lambda: not replica.listener.num_ongoing)
        assert replica.num_cancelled == replica.num_asked >= 1

    run(scenario)


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        ("search", None, 401),
        ("search", "wrong", 401),
        ("search", "\udcff", 401),
        ("listener", "right", 404),
        ("", "right", 404),
    ],
)
def test_who_has_no_key_gets_nothing_and_only_methods_that_routers_ask_are_there(
    path: str, key: str | None, status: int
) -> None:
    async def scenario() -> None:
        replica = Replica()
        address = await replica.listener.address()
        assert address.key not in repr(address)
        headers = {} if key is None else {KEY: address.key if key == "right" else key}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{address.url}/{path}", data=packed(["ours", [VALUES]]), headers=headers) as response,
        ):
            assert response.status == status
            assert await response.read() == b""
        assert replica.num_asked == 0

    run(scenario)


def test_a_body_that_is_no_frame_is_an_error_of_the_caller_alone() -> None:
    async def scenario() -> None:
        replica = Replica()
        address = await replica.listener.address()
        async with aiohttp.ClientSession(headers={KEY: address.key}) as session:
            for body in (b"", b"\xc1", packed(["ours"]), packed(3), packed(["ours", 3])):
                async with session.post(f"{address.url}/search", data=body) as response:
                    assert response.status == 500
        assert (replica.num_asked, replica.listener.num_ongoing) == (0, 0)

    run(scenario)


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
            answer = await replicas.ask("search", [VALUES])
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
        calls = [asyncio.create_task(replicas.ask("search", [VALUES])) for _ in range(30)]
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
            answer = await replicas.ask("search", [VALUES])
            assert answer is not None
            took.append(time.monotonic() - began)
            began = time.monotonic()
        assert sum(seconds > 0.09 for seconds in took) <= direct.MOST_LATE, "then it is asked last"
        assert max(took) < 2

    run(scenario)


def test_a_shard_that_is_slow_everywhere_is_not_asked_twice_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call takes longer than `stuck_s`, but its replica answers others meanwhile."""
    monkeypatch.setattr(direct, "UNKNOWN_STUCK_S", 0.2)

    async def scenario() -> None:
        one, other = Replica(most_at_once=2), Replica(most_at_once=2)
        replicas = direct_to(Handle(one, other))
        await replicas.look()
        for own in (one, other):
            own.may_go_on = Slow(0.1)
        answers = await asyncio.gather(*(replicas.ask("search", [VALUES]) for _ in range(16)))  # .4 s for the last
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
        call = asyncio.create_task(replicas.ask("search", [VALUES]))
        await asyncio.sleep(0.2)
        assert slow.ongoing + quick.ongoing == 1
        hasty.num_left = 1
        await until(lambda: slow.ongoing + quick.ongoing == 2)
        quick.may_go_on.set()
        assert (await call) is not None
        assert hasty.num_left == 0

    run(scenario)


def test_what_cannot_travel_is_asked_by_handle_and_blames_no_replica() -> None:
    async def scenario() -> None:
        replicas = direct_to(Handle(Replica()))
        await replicas.look()
        assert await replicas.ask("search", [[2**64]]) is None
        assert replicas._known

    run(scenario)
