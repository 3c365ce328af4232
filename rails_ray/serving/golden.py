"""The example query that a version answers before it takes over."""

import torch

from rails_ray.errors import DamagedError
from rails_ray.schema.queries import QueryInput
from rails_ray.schema.requests import SearchRequest
from rails_ray.search.rounds import AskShards, Rounds
from rails_ray.serving.engine import Engine
from rails_ray.serving.shard_messages import ShardRequest, ShardResponse

K = 10  # items of the answer
ANY = SearchRequest(queries=[QueryInput(text="any")])  # names neither a method nor a parameter


def golden_search(engine: Engine) -> Rounds[None]:
    """Answer an example query of the model by the version's default search, on all shards. No heavy ranker is asked.

    Raises:
        DamagedError: if a score is no number.
        RailsRayError, ValueError: if a shard fails.
    """
    method, params = engine.search_defaults.method(ANY), engine.search_defaults.params(ANY, K)
    query = engine.encoder.check().state
    answers = yield AskShards("search", (query, ShardRequest(method, params, K), [[]]))
    for shard, answer in enumerate(answers):
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, ShardResponse)
        if torch.isnan(answer.found.scores).any() or torch.isposinf(answer.found.scores).any():
            raise DamagedError(
                f"version {engine.facts['version']} must answer an example query with finite scores, got others from "
                f"shard {shard}: encode and publish another"
            )
