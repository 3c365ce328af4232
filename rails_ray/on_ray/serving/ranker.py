"""The heavy ranker's deployment, a mailbox with replicas, resources and limits of its own, and how a router asks it."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from numpy import ndarray
from ray import serve as ray_serve
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from ray.serve.exceptions import BackPressureError, RayServeException, ReplicaUnavailableError

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.errors import LateError, UnavailableError, UnsupportedError
from rails_ray.on_ray.failures import own_cause
from rails_ray.reranking.rankers import Candidate
from rails_ray.reranking.rankers.calling import ranker_of, scores_of
from rails_ray.schema.ranker import RankerConfig
from rails_ray.search.rounds import AskRanker, RankerCall

PAUSES_S = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0)  # before each try, as long as the time of a call allows
LATE = 6  # a call that takes so many times the limit hangs, and its replica is replaced


@ray_serve.deployment(name="Ranker")
class Ranker:
    """Scores items for queries, `concurrency` calls at a time.

    Args:
        allowed: code that may be carried out beside our own rankers.

    Raises:
        UnsupportedError: if there is no such ranker or it is not allowed, so that the application does not start.
    """

    def __init__(
        self, path: str, folder: str, concurrency: int, timeout_s: float, allowed: AllowedCode = OURS_ALONE
    ) -> None:
        try:
            self.ranker = ranker_of(RankerConfig(path=path, folder=folder), allowed)
        except ValueError as error:
            raise UnsupportedError(str(error)) from None
        self.pool = ThreadPoolExecutor(concurrency)
        self.timeout_s = timeout_s
        self.running: dict[object, float] = {}  # when each call began

    async def score(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> ndarray:
        """The scores of the items, one for each."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, self._score, query, candidates)

    def _score(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> ndarray:
        call = object()
        self.running[call] = time.monotonic()
        try:
            return scores_of(self.ranker, query, candidates)
        finally:
            del self.running[call]

    async def check_health(self) -> None:
        """Raises:
        UnavailableError: if a call hangs. Nothing can stop it, and it holds a place.
        """
        oldest = min(list(self.running.values()), default=time.monotonic())  # a copy: threads change it
        if time.monotonic() - oldest > LATE * self.timeout_s:
            raise UnavailableError(
                f"a call of the heavy ranker must end within {self.timeout_s:g} s, got one that hangs"
            )


@dataclass(frozen=True)
class RankerCaller:
    """
    handle: handle of the deployment.
    timeout_s: limit for a call, its wait for a place included.
    max_in_flight: calls of one router that are under way at once; others wait.
    """

    handle: Any
    timeout_s: float
    max_in_flight: int
    _places: list[asyncio.Semaphore] = field(default_factory=list)

    async def ask(self, step: AskRanker) -> list[Any]:
        """The answer to each call: scores, or an `UnavailableError`."""
        if not self._places:  # in the loop that uses it
            self._places.append(asyncio.Semaphore(self.max_in_flight))
        limit_s = self.timeout_s if step.within_s is None else min(self.timeout_s, step.within_s)
        return list(await asyncio.gather(*(self._ask(call, limit_s) for call in step.calls)))

    async def _ask(self, call: RankerCall, limit_s: float) -> Any:
        try:
            async with asyncio.timeout(limit_s), self._places[0]:
                return await self._answer(call)
        except TimeoutError:
            return LateError(f"the heavy ranker must answer within {limit_s:g} s, got no answer")
        except BackPressureError:
            return UnavailableError("the heavy ranker must have room for a call, got a full queue: try again")
        except (RayError, RayServeException, UnavailableError) as error:
            cause = own_cause(error)
            if isinstance(cause, UnavailableError):
                return cause
            return UnavailableError(f"the heavy ranker must answer, got {type(error).__name__}: try again")

    async def _answer(self, call: RankerCall) -> Any:
        """The answer of a replica. If it dies, another is asked, once: the call itself may have killed it. If none is
        reachable, they are asked until one is."""
        lost, num_died = Exception(), 0
        for pause_s in PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                return await self.handle.score.remote(call.query, call.candidates)
            except (ActorUnavailableError, ReplicaUnavailableError) as error:
                lost = error
            except ActorDiedError as error:
                lost, num_died = error, num_died + 1
                if num_died == 2:
                    break
        raise lost
