"""Search a version in this process: the same steps and the same answers as a server's, without Ray.

from rails_ray import local

emoji = local.open("emoji")
emoji.search(["pizza", "flag"], k=10, cutoff={"coverage": 0.9}).results[0].items

`build` makes a version of vectors that you have. The package carries a version of emoji, under the name "emoji".
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ValidationError

from rails_ray.allowed_code import AllowedCode
from rails_ray.families.version import Version
from rails_ray.reranking.rankers import HeavyRanker
from rails_ray.reranking.rankers.calling import answers_of, ranker_of
from rails_ray.schema.queries import Query, query_fields
from rails_ray.schema.requests import CutoffInput, ExplainRequest, FeedbackRequest, SearchRequest
from rails_ray.schema.responses import ExplainResponse, FeedbackResponse, QueryResult, SearchResponse
from rails_ray.search.indexes.faiss_index import IndexConfig
from rails_ray.search.rounds import Done, Rounds
from rails_ray.serving.drift import Distance
from rails_ray.serving.engine import Engine, Limits
from rails_ray.serving.feedback import Feedback
from rails_ray.serving.held_shards import HeldShards
from rails_ray.serving.running_means import RunningMean
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.serving.validation_messages import sentence
from rails_ray.serving.vector_queries import VectorQueries, VectorSearch
from rails_ray.storage.filesystem import NAME, Storage
from rails_ray.storage.manifest import Manifest

MOST = 10 * Limits().max_answered_items
OWN_LIMITS = Limits(max_queries=MOST, max_answered_items=MOST)  # of a process where nobody else waits

PACKAGED = Path(__file__).parents[1] / "packaged"  # storages that come with the package

Value = TypeVar("Value")
Request = TypeVar("Request", bound=BaseModel)


class LocalVersion:
    """A version, all of its shards loaded into this process. Threads may share it, if they may share its ranker.

    Its methods, their arguments, answers and errors are those of `rails_ray.client.Client`.

    ranker_path: import path of the ranker, if the version named it.
    """

    def __init__(
        self,
        manifest: Manifest,
        engine: Engine,
        shards: Sequence[ShardSearch],
        ranker: HeavyRanker | None = None,
        ranker_path: str | None = None,
    ) -> None:
        self.manifest = manifest
        self.engine = engine
        self.shards = shards
        self.ranker = ranker
        self.ranker_path = ranker_path
        self.clock: Callable[[], float] = time.monotonic
        self._held = HeldShards(shards)
        self._feedback = Feedback(engine.limits)

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the version is: items, shards, the fields that give a query, its cut-off and default search."""
        return self.engine.facts

    def index(self) -> dict[str, Any]:
        """Return the facts, and what a server says of its traffic; this process measures feedback alone."""
        traffic = {"shadow": RunningMean().to_dict("recall"), "drift": Distance().to_dict()}
        return {**self.facts, "ranker": self.ranker_path, "feedback": self._feedback.judged.to_dict(), **traffic}

    def search(
        self,
        queries: Iterable[Query],
        k: int | None = None,
        *,
        method: str | None = None,
        cutoff: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> SearchResponse:
        """The best items for each query, cut to those worth returning.

        Args:
            queries: one each, or vectors [B, D].
            k: most items of a list; without a cut-off just so many, as far as there are.
            method: by default, and if there is no search parameter, the version's, else brute_force.
            cutoff: one of mass, coverage, nucleus, probability, score and top_k with its value; by default, and if
                there is no k, the version's.
            options: further fields of a request, such as num_candidates.

        Raises:
            ValueError: if a field is wrong.
            UnsupportedError: if the version lacks what the cut-off needs.
        """
        fields = {"k": k, "method": method, "cutoff": cutoff, **options}
        vectors = VectorQueries.given(queries)
        request: SearchRequest
        if vectors is not None:
            request = _read(VectorSearch, {"queries": vectors, **fields})
        else:
            request = _read(SearchRequest, {"queries": [query_fields(query) for query in queries], **fields})
        answered = self.carry_out(self.engine.search(request))
        return answered.head.model_copy(update={"results": list(answered.results)})

    def explain(self, query: Query, items: Sequence[str | int], **options: Any) -> ExplainResponse:
        """The component cosines and the gates of a query and some items.

        Args:
            options: further fields of a request: ids.

        Raises:
            ValueError: if the query is wrong, or an item is not in the index.
        """
        request = _read(ExplainRequest, {"query": query_fields(query), "items": list(items), **options})
        return self.carry_out(self.engine.explain(request))

    def feedback(
        self, queries: Iterable[Query], relevant: Sequence[Sequence[str | int]], **options: Any
    ) -> FeedbackResponse:
        """Which of the relevant items a search keeps.

        Args:
            relevant: for each query, the items that turned out to be relevant, found or not.
            options: other fields of the search, such as method and cutoff.

        Raises:
            ValueError: if a field is wrong.
            UnsupportedError: if the version lacks what the cut-off needs.
        """
        search = {"queries": [query_fields(query) for query in queries], **options}
        request = _read(FeedbackRequest, {"search": search, "relevant": [list(items) for items in relevant]})
        results = list[QueryResult]()
        for part, named in self._feedback.searches(request):
            with named:
                found = self.carry_out(self.engine.search(part))
                results += found.results
        return self._feedback.judge(request, found.head, results)

    def embed(self, texts: Sequence[str], input_type: Literal["query", "document"] = "query") -> list[list[float]]:
        """A vector for each text, which a search takes as `embedding`.

        Args:
            input_type: `document` for the vectors of items.

        Raises:
            ValueError: if the model cannot read a text, or there are too many.
            UnsupportedError: if the model makes no such vector.
        """
        vectors: list[list[float]] = self.engine.embed(texts, are_items=input_type != "query").tolist()
        return vectors

    def carry_out(self, rounds: Rounds[Value]) -> Value:
        """The result of rounds, all shards asked at once, and the ranker call by call."""
        step = self._held.advance(rounds)
        while not isinstance(step, Done):
            assert self.ranker is not None  # the engine asks for one otherwise
            step = self._held.advance(rounds, answers_of(self.ranker, step.calls, step.within_s, self.clock))
        value: Value = step.value
        return value


def open(
    storage: str,
    version: str | None = None,
    *,
    device: str = "cpu",
    ranker: HeavyRanker | None = None,
    cutoff: CutoffInput | None = None,
    limits: Limits = OWN_LIMITS,
    allow_code: Sequence[str] = (),
) -> LocalVersion:
    """Load a version.

    Args:
        storage: folder or s3://bucket/prefix that holds index versions; or `emoji`, unless there is such a folder, for
            the version that comes with the package.
        version: a published version; by default the current one.
        device: where the model and the items go, such as cuda.
        ranker: the heavy ranker, for a `budget`; by default the one that the version was made with, if any.
        cutoff: for searches that name none; by default the version's.
        limits: on what is asked at once.
        allow_code: modules of your own, with what lies below them, or import paths MODULE:NAME, whose code the
            version's config may name as its ranker or encoder; further ones in RAILS_RAY_ALLOW_CODE.

    Raises:
        NotFoundError: if there is no such version.
        DamagedError: if a file of it differs from its manifest.
        UnsupportedError: if the version has an index and FAISS is not installed, or lacks what the cut-off needs, or
            the method of its default search.
        ValueError: if there is no such device, if the version's config names code that is not allowed, or if its ranker
            cannot be imported.
    """
    check_device(device)
    opened = Version.published(Storage(place_of(storage)), version, AllowedCode.given(allow_code))
    own, path = opened.family, None
    own.check_code(has_ranker=ranker is not None)  # before anything is loaded
    if ranker is None and own.ranker.path:
        ranker, path = ranker_of(own.ranker, own.allowed), own.ranker.path
    engine = Engine(opened, cutoff=cutoff, limits=limits, device=device, has_ranker=ranker is not None)
    shards = [ShardSearch(opened, shard, device) for shard in range(opened.num_shards)]
    engine.search_defaults.check(shards[0].searcher.methods)
    return LocalVersion(opened.manifest, engine, shards, ranker, path)


def place_of(storage: str) -> str:
    """Return the place of a storage that is named: one that comes with the package, where no folder has its name."""
    packaged = PACKAGED / storage
    return str(packaged) if NAME.fullmatch(storage) and packaged.is_dir() and not Path(storage).exists() else storage


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


def build(
    vectors: ArrayLike,
    ids: Sequence[Any] | NDArray[Any] | None = None,
    *,
    titles: Sequence[Any] | None = None,
    folder: str | None = None,
    version: str = "v1",
    zero_vectors: Literal["refuse", "keep"] = "refuse",
    query_encoder: str | None = None,
    index: str | IndexConfig = "flat",
) -> LocalVersion:
    """Make a version of vectors in this process, and open it. Queries are vectors too, and a score is a cosine.

    Args:
        vectors: of the items [X, D], finite; their lengths do not matter.
        ids: integers or strings, all different; by default the numbers of the rows.
        titles: shown with answers.
        folder: storage that keeps the version, for `open` and for a server; by default nothing is kept.
        version: its name there.
        zero_vectors: whether vectors of zeros, which no cosine compares, are refused, or kept and found last.
        query_encoder: folder of the sentence-transformers model that made the vectors, so that a query may be a text.
        index: what `search(.., method="ann")` searches: `flat`, `hnsw`, `ivf`, or a config such as
            `rails_ray.search.indexes.hnsw.HnswConfig(M=16)`. Building a graph takes one core longest.

    Raises:
        UnsupportedError: if there is such a model, and sentence-transformers is not installed; for another index than
            flat in float32 if FAISS is not.
        ConflictError: if the folder has such a version already.
        ValueError: if the arguments are not as said.
    """
    from rails_ray.families.building import build_version  # the recipes, which nothing that is opened needs

    if folder is not None:
        build_version(Storage(folder), version, vectors, ids, titles, zero_vectors, query_encoder, index)
        return open(folder, version)
    with TemporaryDirectory(prefix="rails-ray-") as passing:
        build_version(Storage(passing), version, vectors, ids, titles, zero_vectors, query_encoder, index)
        return open(passing, version)  # what it holds is in memory


def _read(kind: type[Request], fields: dict[str, Any]) -> Request:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise ValueError(sentence(dict(error.errors(include_url=False)[0]))) from None
