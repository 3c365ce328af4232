"""How shards are asked: a replica that dies or is of another version is passed over, others are waited for."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.exceptions import BackPressureError

from rails_ray.errors import BusyError, LostGpuError, UnavailableError
from rails_ray.on_ray.serving.router import Router
from rails_ray.on_ray.serving.transport import shards as asking
from rails_ray.on_ray.serving.transport.codec import Reply, answered, packed, question, reply, unpacked
from rails_ray.on_ray.serving.transport.shards import PAUSES_S, Shards
from rails_ray.search.rounds import AskShards, Rounds


class Handle:
    """Of a shard whose replicas give these answers in turn, or raise them; None waits for ever."""

    def __init__(self, *answers: Any) -> None:
        self.left, self.asked = list(answers), list[Any]()
        self.call = SimpleNamespace(remote=self._call)

    async def _call(self, method: str, message: bytes) -> bytes:
        identity, arguments = unpacked(message)
        self.asked.append((method, identity, *arguments))
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
        return packed(answer)


OURS, OTHERS = Reply("ours", "found"), Reply("others", None)


def ask(*handles: Handle, timeout_s: float = 5) -> list[Any]:
    return asyncio.run(Shards(list(handles), "v2", "ours", timeout_s).ask("search", "query", 3))


@pytest.mark.parametrize("lost", [ActorDiedError(), ActorUnavailableError("gone", None), LostGpuError("gone"), OTHERS])
def test_another_replica_is_asked_where_one_dies_or_is_of_another_version(lost: Any) -> None:
    handle = Handle(lost, lost, OURS)
    assert ask(handle) == ["found"]
    assert handle.asked == [("search", "ours", "query", 3)] * 3


def test_where_no_replica_is_of_the_version_the_shard_is_missing() -> None:
    handle = Handle(*[OTHERS] * 20)
    (refused, found) = ask(handle, Handle(OURS))
    assert found == "found"
    assert isinstance(refused, UnavailableError)
    assert str(refused) == "shard 0 must be of version v2, got replicas of another one: try again"
    assert len(handle.asked) == len(PAUSES_S)


def test_an_answer_of_another_version_is_none_even_if_it_holds_something() -> None:
    assert ask(Handle(Reply("others", "found elsewhere"), OURS)) == ["found"]


def test_replicas_that_keep_dying_are_told_as_they_died() -> None:
    (died,) = ask(Handle(*[ActorDiedError()] * 20))
    assert isinstance(died, ActorDiedError)


def test_what_a_replica_refuses_is_not_asked_again_and_one_that_is_slow_not_waited_for() -> None:
    handle = Handle(ValueError("no"), OURS)
    (refused,) = ask(handle)
    assert isinstance(refused, ValueError)
    assert len(handle.asked) == 1
    for answers in ([None], [ActorDiedError(), None]):
        (late,) = ask(Handle(*answers), timeout_s=0.05)
        assert isinstance(late, TimeoutError)


def test_a_call_by_handle_that_is_silent_is_made_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "SILENT_S", 0.05)
    silent = Handle(None, OURS)
    assert ask(silent) == ["found"]
    assert silent.asked == [("search", "ours", "query", 3)] * 2
    full = BackPressureError(num_queued_requests=9, max_queued_requests=8)
    (late,) = ask(Handle(None, full), timeout_s=0.2)
    assert isinstance(late, TimeoutError), "the first may still answer"
    (late,) = ask(Handle(None, None), timeout_s=0.2)
    assert isinstance(late, TimeoutError)


def test_a_replica_does_nothing_for_another_version_and_says_which_one_it_has() -> None:
    class Replica:
        identity = "ours"
        methods = frozenset({"search"})
        num_asked = 0

        def of(self, identity: str) -> "Replica | None":
            return self if identity == self.identity else None

        async def search(self, query: str) -> str:
            self.num_asked += 1
            return query.upper()

    replica = Replica()
    assert reply(asyncio.run(answered(replica, "search", question("ours", ["red"])))) == Reply("ours", "RED")
    assert reply(asyncio.run(answered(replica, "search", question("others", ["red"])))) == Reply("ours", None)
    assert replica.num_asked == 1
    with pytest.raises(ValueError, match="method must be one of search, got 'listener'"):
        asyncio.run(answered(replica, "listener", question("ours", [])))


def test_a_step_may_have_less_time_than_a_shard() -> None:
    def briefly() -> Rounds[list[Any]]:
        return list((yield AskShards("search", (), within_s=0.05)))

    found, late = carried_out(briefly(), Handle(OURS), Handle(None))
    assert found == "found"
    assert isinstance(late, TimeoutError)


def carried_out(rounds: Rounds[Any], *handles: Handle) -> Any:
    return asyncio.run(Shards(list(handles), "v2", "ours", 5).carry_out(rounds))


def test_rounds_are_carried_out_one_after_the_other_in_threads() -> None:
    """A step may take a while, and end as it begins."""
    threads = list[int]()

    def twice() -> Rounds[Any]:
        threads.append(threading.get_ident())
        first = yield AskShards("search", ("one",))
        threads.append(threading.get_ident())
        second = yield AskShards("search", ("two", 2))
        return first, second

    left, right = Handle(OURS, OURS), Handle(OURS, Reply("ours", "other"))
    assert carried_out(twice(), left, right) == (["found", "found"], ["found", "other"])
    assert left.asked == right.asked == [("search", "ours", "one"), ("search", "ours", "two", 2)]
    assert threading.get_ident() not in threads

    def nothing() -> Rounds[str]:
        return "at once"
        yield AskShards("search", ())

    assert carried_out(nothing()) == "at once"


def test_rounds_are_told_the_error_beneath_a_failure_of_ray() -> None:
    failure = RuntimeError("a traceback")
    failure.cause = ValueError("k must be something else")
    plain = RuntimeError("nothing of ours")

    def once() -> Rounds[Any]:
        return (yield AskShards("search", ()))

    assert carried_out(once(), Handle(failure), Handle(plain)) == [failure.cause, plain]


def test_what_a_round_raises_is_raised() -> None:
    def refusing() -> Rounds[Any]:
        yield AskShards("search", ())
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        carried_out(refusing(), Handle(OURS))


def router_of(num_items: Any) -> SimpleNamespace:
    """What a router is asked for its health."""
    engine, shards = SimpleNamespace(facts={"version": "v1"}), SimpleNamespace(num_items=num_items)
    current = SimpleNamespace(engine=engine, shards=shards)
    return SimpleNamespace(current=current, asking_health=None, keys_problem=None, follower=None)


def test_those_who_ask_for_health_at_once_ask_the_shards_once() -> None:
    num_asked = 0

    async def num_items() -> list[int]:
        nonlocal num_asked
        num_asked += 1
        await asyncio.sleep(0)
        return [3, 4]

    router = router_of(num_items)
    health = Router.func_or_class.health

    async def run() -> list[Any]:
        return [*await asyncio.gather(*[health(router) for _ in range(5)]), await health(router)]

    assert asyncio.run(run()) == [{"status": "ok", "version": "v1", "num_shards": 2}] * 6
    assert num_asked == 2


def health_of(*answers: Any) -> dict[str, Any]:
    async def num_items() -> list[Any]:
        return list(answers)

    found: dict[str, Any] = asyncio.run(Router.func_or_class.health(router_of(num_items)))
    return found


def test_a_shard_whose_queue_is_full_is_healthy_and_one_that_is_late_is_not() -> None:
    assert health_of(3, BusyError("full"))["status"] == "ok"
    with pytest.raises(UnavailableError, match="2 shards must answer, got none from shard 1"):
        health_of(3, TimeoutError())
