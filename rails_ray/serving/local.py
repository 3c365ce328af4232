"""Search a version in this process: the same steps and the same answers as a server's, without Ray.

from rails_ray import local

emoji = local.open("emoji")
emoji.search(["dog", "flag"], k=10, cutoff={"coverage": 0.9}).results[0].items

`build` makes a version of vectors that you have. The package carries a version of emoji, under the name "emoji".
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from numpy.typing import ArrayLike
from pydantic import BaseModel, ValidationError

from rails_ray.allowed_code import AllowedCode
from rails_ray.errors import UnsupportedError
from rails_ray.families.version import Version
from rails_ray.reranking.rankers import HeavyRanker
from rails_ray.reranking.rankers.calling import answers_of, ranker_of
from rails_ray.schema.fields import listed, lists_of, shortened
from rails_ray.schema.queries import Query, listed_fields, query_fields
from rails_ray.schema.requests import CutoffInput, ExplainRequest, FeedbackRequest, SearchRequest
from rails_ray.schema.responses import ExplainResponse, FeedbackResponse, QueryResult, SearchResponse
from rails_ray.search.indexes.faiss_index import IndexConfig
from rails_ray.search.rounds import Done, Rounds
from rails_ray.serving.drift import Distance
from rails_ray.serving.engine import Engine
from rails_ray.serving.feedback import Feedback
from rails_ray.serving.held_shards import HeldShards
from rails_ray.serving.loaded import Loaded, check_device
from rails_ray.serving.request_limits import Limits
from rails_ray.serving.running_means import RunningMean
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.serving.validation_messages import sentence
from rails_ray.serving.vector_queries import VectorQueries, VectorSearch
from rails_ray.storage.described import Manifest
from rails_ray.storage.filesystem import NAME, Storage
from rails_ray.storage.versions import CURRENT

if TYPE_CHECKING:
    from pyarrow.compute import Expression

    from rails_ray.families.changing import Change

MOST = 10 * Limits().max_answered_items
OWN_LIMITS = Limits(max_queries=MOST, max_answered_items=MOST)  # of a process where nobody else waits

PACKAGED = Path(__file__).parents[1] / "packaged"  # storages that come with the package

Value = TypeVar("Value")
Request = TypeVar("Request", bound=BaseModel)


class LocalVersion:
    """A version, all of its shards loaded into this process. Threads may share it, if they may share its ranker.

    Its questions, their arguments, answers and errors are those of `rails_ray.client.Client`.

    ranker_path: import path of the ranker, if the version named it.
    """

    def __init__(
        self,
        loaded: Loaded,
        ranker: HeavyRanker | None = None,
        ranker_path: str | None = None,
    ) -> None:
        self.ranker = ranker
        self.ranker_path = ranker_path
        self.clock: Callable[[], float] = time.monotonic
        self.loaded = loaded  # replaced as a whole: a search keeps what it began with
        self._feedback = Feedback(loaded.engine.limits)

    @property
    def version(self) -> Version:
        """The version that answers."""
        return self.loaded.version

    @property
    def manifest(self) -> Manifest:
        """Its manifest."""
        return self.loaded.version.manifest

    @property
    def engine(self) -> Engine:
        """Its engine, from a request to what shards are asked."""
        return self.loaded.engine

    @property
    def shards(self) -> Sequence[ShardSearch]:
        """Its shards."""
        return self.loaded.shards

    def add(
        self,
        inputs: ArrayLike | Iterable[Any],
        ids: Iterable[Any],
        *,
        titles: Iterable[Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
        replace: bool = False,
    ) -> "Change":
        """Add items to the storage's current version, make the result current, and answer from it.

        Args:
            inputs: what the model reads of each item: vectors [X, D], or texts.
            ids: of the type that the version's ids have.
            titles: shown with answers, and read before texts, as those of a data set are.
            attributes: values of all these items, by the name of an attribute that the version has; one that is left
                out is null.
            replace: whether items may be there already, and are then replaced.

        Raises:
            UnsupportedError: if no storage keeps the version.
            ConflictError: if others changed the version again and again in the meantime.
            ValueError: if the items are not as said, or are there already.
        """
        from rails_ray.families import changing
        from rails_ray.families.given_items import given_items

        items = given_items(inputs, ids, titles, attributes)
        change = changing.add(self._kept_in(), items, replaces=replace, allow_code=self.version.allowed.named)
        self.refresh()
        return change

    def delete(self, ids: Iterable[str | int]) -> "Change":
        """Delete items from the storage's current version, make the result current, and answer from it. Ids that no
        item has are counted.

        Raises:
            UnsupportedError: if no storage keeps the version.
            ConflictError: if others changed the version again and again in the meantime.
            ValueError: if no item would be left.
        """
        from rails_ray.families import changing

        change = changing.delete(
            self._kept_in(), listed(ids, "ids", in_order=False), allow_code=self.version.allowed.named
        )
        self.refresh()
        return change

    def refresh(self) -> bool:
        """Answer from the storage's current version, with its current calibrations and default search. Only what this
        one lacks is read, and searches that have begun end with this one.

        Returns:
            Whether any of these is another.

        Raises:
            DamagedError: if a file of it differs from its manifest; this version then goes on.
        """
        former = self.loaded
        opened = Version.published(self._kept_in(), None, former.version.allowed)
        is_other = opened.manifest.sha256 != former.version.manifest.sha256
        if not is_other and opened.tuned == former.version.tuned:
            return False
        self.loaded = former.followed_by(opened)
        return True

    def _kept_in(self) -> Storage:
        storage = self.version.storage
        if not storage.exists(CURRENT):
            raise UnsupportedError(
                f"version {self.manifest.version} must be kept in a folder to be changed, got one in memory alone: "
                "build it with a folder"
            )
        return storage

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the version is: items, shards, the fields that give a query, its cut-off and default search."""
        return self.engine.facts

    def index(self) -> dict[str, Any]:
        """Return the facts, and what a server says of its traffic; this process measures feedback alone."""
        traffic = {"shadow": RunningMean().to_dict("recall"), "drift": Distance().to_dict()}
        served = {"served_since": f"{self.loaded.since:%Y-%m-%dT%H:%M:%SZ}", "follows_every_s": None}
        own: dict[str, Any] = {"ranker": self.ranker_path, "feedback": self._feedback.judged.to_dict()}
        own |= {"gpu_scans": self.loaded.held.gpu_scans, "indexes_on_cpu": self.loaded.held.indexes_on_cpu}
        return {**self.facts, **own, **served, **traffic}

    def search(
        self,
        queries: Iterable[Query],
        k: int | None = None,
        *,
        method: str | None = None,
        cutoff: Mapping[str, Any] | None = None,
        filter: "Mapping[str, Any] | Expression | None" = None,
        **options: Any,
    ) -> SearchResponse:
        """The best items for each query, cut to those worth returning.

        Args:
            queries: one each, or vectors [B, D].
            k: most items of a list; without a cut-off just so many, as far as there are.
            method: by default, and if there is no search parameter, the version's, else brute_force.
            cutoff: one of mass, coverage, nucleus, probability, score and top_k with its value; by default, and if
                there is no k, the version's.
            filter: which items may be found, by their attributes, such as {"price": {"$lt": 20}}; or an expression of
                `pyarrow.compute` over them.
            options: further fields of a request, such as num_candidates.

        Raises:
            ValueError: if a field is wrong.
            UnsupportedError: if the version lacks what the cut-off needs.
        """
        expression = None if filter is None or isinstance(filter, Mapping) else _expression(filter)
        fields = {"k": k, "method": method, "cutoff": cutoff, **options}
        fields["filter"] = filter if expression is None else None
        vectors = VectorQueries.given(queries)
        request: SearchRequest
        if vectors is not None:
            request = _read(VectorSearch, {"queries": vectors, **fields})
        else:
            request = _read(SearchRequest, {"queries": listed_fields(queries), **fields})
        if expression is not None:
            request = request.model_copy(update={"filter": expression})
        loaded = self.loaded
        answered = self.carry_out(loaded.engine.search(request), loaded.held)
        return answered.head.model_copy(update={"results": list(answered.results)})

    def explain(self, query: Query, items: Sequence[str | int], **options: Any) -> ExplainResponse:
        """The component cosines and the gates of a query and some items.

        Args:
            options: further fields of a request: ids.

        Raises:
            ValueError: if the query is wrong, or an item is not in the index.
        """
        request = _read(
            ExplainRequest, {"query": query_fields(query), "items": listed(items, "items", in_order=False), **options}
        )
        loaded = self.loaded
        return self.carry_out(loaded.engine.explain(request), loaded.held)

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
        search = {"queries": listed_fields(queries), **options}
        request = _read(FeedbackRequest, {"search": search, "relevant": lists_of(relevant, "relevant")})
        loaded, results = self.loaded, list[QueryResult]()
        for part, named in self._feedback.searches(request):
            with named:
                found = self.carry_out(loaded.engine.search(part), loaded.held)
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
        given = listed(texts, "texts")
        for number, text in enumerate(given):
            if not isinstance(text, str):
                raise ValueError(f"texts[{number}] must be a string, got {shortened(text)}")
        vectors: list[list[float]] = self.engine.embed(given, are_items=input_type != "query").tolist()
        return vectors

    def carry_out(self, rounds: Rounds[Value], held: HeldShards | None = None) -> Value:
        """The result of rounds, all shards asked at once, and the ranker call by call.

        Args:
            held: the shards of the version that the rounds are of; by default those of the current one.
        """
        held = held or self.loaded.held
        step = held.advance(rounds)
        while not isinstance(step, Done):
            assert self.ranker is not None  # the engine asks for one otherwise
            step = held.advance(rounds, answers_of(self.ranker, step.calls, step.within_s, self.clock))
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
    loaded = Loaded.of(opened, device, cutoff=cutoff, limits=limits, has_ranker=ranker is not None)
    return LocalVersion(loaded, ranker, path)


def place_of(storage: str) -> str:
    """Return the place of a storage that is named: one that comes with the package, where no folder has its name."""
    packaged = PACKAGED / storage
    return str(packaged) if NAME.fullmatch(storage) and packaged.is_dir() and not Path(storage).exists() else storage


def build(
    vectors: ArrayLike | Iterable[Any],
    ids: Iterable[Any] | None = None,
    *,
    titles: Iterable[Any] | None = None,
    folder: str | None = None,
    version: str = "v1",
    zero_vectors: Literal["refuse", "keep"] = "refuse",
    query_encoder: str | None = None,
    index: str | IndexConfig = "flat",
    attributes: Mapping[str, Any] | None = None,
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
        attributes: further facts of the items, which filters may name: values of all items, by the name of the
            attribute, such as `{"price": [9.5, None]}`. Booleans, integers, floats, strings, times or lists of strings.

    Raises:
        UnsupportedError: if there is such a model, and sentence-transformers is not installed; for another index than
            flat in float32 if FAISS is not.
        ConflictError: if the folder has such a version already.
        ValueError: if the arguments are not as said.
    """
    from rails_ray.families.building import build_version  # the recipes, which nothing that is opened needs

    if folder is not None:
        build_version(Storage(folder), version, vectors, ids, titles, zero_vectors, query_encoder, index, attributes)
        return open(folder, version)
    with TemporaryDirectory(prefix="rails-ray-") as passing:
        build_version(Storage(passing), version, vectors, ids, titles, zero_vectors, query_encoder, index, attributes)
        return open(passing, version)  # what it holds is in memory


def _expression(filter: Any) -> Any:
    """An expression as a filter; None for what is none, which a request refuses."""
    from pyarrow.compute import Expression  # most searches need none

    return filter if isinstance(filter, Expression) else None


def _read(kind: type[Request], fields: dict[str, Any]) -> Request:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise ValueError(sentence(dict(error.errors(include_url=False)[0]))) from None
