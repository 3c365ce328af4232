"""Shards asked directly: which replica, by whom, and what comes of it if it cannot be."""

import asyncio
import time

import numpy as np
import pytest
from ray.serve.exceptions import BackPressureError
from starlette.exceptions import HTTPException

from rails_ray.errors import BusyError, LostGpuError
from rails_ray.on_ray.serving.transport import replicas as direct
from rails_ray.on_ray.serving.transport.frames import ANSWER, frame
from rails_ray.on_ray.serving.transport.listener import Address
from rails_ray.on_ray.serving.transport.shards import Shards
from rails_ray.serving.http.deadlines import in_time
from support.direct_calls import MESSAGE, Handle, Replica, asked, direct_to, one_known, run, until


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


def test_replicas_that_start_one_after_the_other_are_found_while_calls_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "LOOK_AGAIN_S", 0.02)
    monkeypatch.setattr(direct, "SETTLED_S", 1.0)

    async def scenario() -> None:
        handle = Handle(Replica())
        replicas = direct_to(handle)
        began = time.monotonic()
        while time.monotonic() - began < 2.5:
            await asked(replicas, handle)
            if handle.num_looks == 5 and len(handle.replicas) == 1:
                handle.replicas.append(Replica())
            await asyncio.sleep(0.01)
        assert len(replicas._known) == 2
        num_looks = handle.num_looks
        for _ in range(20):
            await asked(replicas, handle)
            await asyncio.sleep(0.01)
        assert handle.num_looks == num_looks, "nothing has changed for long enough"

    run(scenario)


def test_a_replica_of_another_version_is_not_asked() -> None:
    async def scenario() -> None:
        others, ours = Replica("others"), Replica()
        replicas = direct_to(Handle(others, RuntimeError("died"), ours))
        await replicas.look()
        for _ in range(4):
            answer = await replicas.ask("search", MESSAGE, 5)
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
        calls = [asyncio.create_task(replicas.ask("search", MESSAGE, 5)) for _ in range(10)]
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


def test_a_replica_that_lost_its_gpu_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        replica, other = Replica(), Replica()
        handle = Handle(other)
        replicas = direct_to(Handle(replica))
        await replicas.look()

        async def lost(values: np.ndarray) -> np.ndarray:
            raise LostGpuError("gone")

        monkeypatch.setattr(replica, "search", lost)
        assert (await asked(replicas, handle)).tolist() == [0, 2, 4]
        assert handle.num_by_handle == 1
        assert not replicas._known

    run(scenario)


def test_where_nobody_listens_the_handle_is_asked_and_the_replicas_are_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct, "LOOK_AGAIN_S", 0.0)

    async def scenario() -> None:
        lost, replica = Address("tcp://127.0.0.1:9", "key", "ours"), Replica()
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
            writer.writelines(frame(1, ANSWER, 200, b"\xc1\xc1\xc1"))
            await writer.drain()
            writer.close()

        async def speaks_otherwise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            writer.close()

        for behaviour in (dies, lies, speaks_otherwise):
            server = await asyncio.start_server(behaviour, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            handle = Handle(Address(f"tcp://127.0.0.1:{port}", "key", "ours"))
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
        calls = [asyncio.create_task(replicas.ask("search", MESSAGE, 5)) for _ in range(2)]
        await until(lambda: replica.listener.num_ongoing == 2 and replica.ongoing == 1)
        for call in calls:
            call.cancel()
        await until(lambda: not replica.listener.num_ongoing)
        assert replica.num_cancelled == replica.num_asked >= 1

    run(scenario)


def test_a_call_that_gets_no_place_in_its_time_is_dropped_though_the_caller_still_waits() -> None:
    async def scenario() -> None:
        replica = Replica(most_at_once=1)
        replicas = direct_to(Handle(replica))
        await replicas.look()
        replica.may_go_on.clear()
        first = asyncio.create_task(replicas.ask("search", MESSAGE, 5))
        await until(lambda: replica.ongoing == 1)
        assert await replicas.ask("search", MESSAGE, 0.05) is None
        assert (replica.listener.num_ongoing, replica.num_asked) == (1, 1)
        replica.may_go_on.set()
        answer = await first
        assert answer is not None
        assert answer.value.tolist() == [0, 2, 4]
        assert len(replicas._known) == 1  # it is not to blame

    run(scenario)


def test_a_replica_is_told_how_long_the_client_waits() -> None:
    async def scenario() -> None:
        replica = Replica(most_at_once=1)
        handle = Handle(replica)
        replicas = direct_to(handle)
        await replicas.look()
        replica.may_go_on.clear()
        first = asyncio.create_task(replicas.ask("search", MESSAGE, 5))
        await until(lambda: replica.ongoing == 1)
        calls = [first]

        async def wait() -> None:
            async with in_time(50):
                calls.append(asyncio.create_task(asked(replicas, handle)))  # goes on when the client has gone
                await asyncio.shield(calls[1])

        with pytest.raises(HTTPException, match="an answer must be there within 50 ms"):
            await wait()
        await until(calls[1].done)
        assert isinstance(calls[1].result(), TimeoutError)
        assert (replica.listener.num_ongoing, replica.num_asked, handle.num_by_handle) == (1, 1, 0)
        first.cancel()

    run(scenario)


def test_a_replica_that_ends_answers_what_is_under_way_and_takes_no_more() -> None:
    async def scenario() -> None:
        replica, handle, replicas = await one_known()
        replica.may_go_on.clear()
        under_way = asyncio.create_task(asked(replicas, handle))
        await until(lambda: replica.ongoing == 1)
        closing = asyncio.create_task(replica.listener.close())
        await until(lambda: not replica.listener.is_open)
        await asyncio.sleep(0.05)
        later = asyncio.create_task(asked(replicas, handle))
        await until(lambda: handle.num_by_handle == 1)
        assert not closing.done()
        replica.may_go_on.set()
        assert (await under_way).tolist() == (await later).tolist() == [0, 2, 4]
        assert (handle.num_by_handle, replica.num_cancelled) == (1, 0)
        await closing

    run(scenario)
