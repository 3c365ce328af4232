"""Query a server, or a version in this process."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rails_ray.allowed_code import AllowedCode
from rails_ray.cli.base import STORAGE, AllowsCode, errors, out
from rails_ray.cli.serving import check_folder, named_cutoff
from rails_ray.reranking.rankers.calling import ranker_of
from rails_ray.schema.ranker import RankerConfig
from rails_ray.schema.requests import CutoffKind
from rails_ray.schema.responses import BudgetResult, CertificateResult, ExplainResponse, SearchResponse
from rails_ray.schema.search_params import PARAM_NAMES, SearchParams

Search = Callable[..., SearchResponse]
Explain = Callable[..., ExplainResponse]
MOST_PLOTTED = 10_000  # of all queries together, far below what a request may ask for
PLOTTED = 50  # items that --plot draws at least, if there are as many
if TYPE_CHECKING:
    from rails_ray.modules.encoders.words import Cut

    Params = SearchParams
else:
    Params = make_dataclass("Params", [(name, int | None, field(default=None)) for name in PARAM_NAMES], frozen=True)
    Params.__doc__ = SearchParams.__doc__  # what `--help` says
DEFAULT_URL = "http://127.0.0.1:8000"
VECTORS = '{"title": [0.5, 1]}'  # an example of vectors by name
MORE_BY_BUCKETS = "the buckets looked up hold no more items; raise --num-probes to look up more"
MORE_BY_INDEX = "the index found no more items; raise --nprobe or --ef-search to look at more"


@dataclass(frozen=True)
class Query(AllowsCode):
    """Query a running server, or a version in this process, with what its index takes: texts, users or a history,
    features, a vector, or vectors by name.

    Args:
        texts: Text queries.
        user_id: Users, by their ids in the index; one query each.
        history: Item ids in time order; one query.
        features: Features as NUMBER:VALUE, such as 17:0.5, or NUMBER for a value of 1; one query.
        embedding: The numbers of a vector; one query.
        embeddings: Vectors by name, in JSON, such as '{"title": [0.5, 1], "body": [0.2]}'; one query.
        fallback: `popular` answers a query of which the index knows nothing with its most popular items.
        plot: PNG file to draw: the scores of the first queries by rank, and where the cut-off ends.
        plot_explanation: PNG file to draw: why the first query's best items were found.
        filter: Which items may be found, by their attributes, in JSON, such as '{"price": {"$lt": 20}}'.
        fields: Attributes to show of each item.
        k: Most items per query to count as kept. If left out: 1000, or fewer for many queries.
        show: Items per query to show.
        cutoff: Name and value of the cut-off. If left out: the server's own.
        method: brute_force and two_pass are exact. per_embedding, average, combined, gated (mixtures only), ann (dot
            products only), surrogate (versions with one), lookup and ivf_lookup (components stored as codes) and
            inverted (SOLAR only) are approximate and say how far off an answer can be. If left out, and no search
            parameter is given: the version's own, else brute_force.
        params: How much the search looks at.
        calls: Budget of calls of the heavy ranker for each query. If left out: none but those that an index of RBE
            spends on a query.
        deadline_ms: With --calls: milliseconds after which the order is the index's.
        rounds: With --calls: rounds that the reranking is split into (AXN).
        url: Address of the server. If it needs an API key, set RAILS_RAY_API_KEY.
        local: Load the version into this process instead of asking a server.
        ranker: With --local: the heavy ranker. If left out: the one that a version of RBE was made with.
        storage: With --local: folder or s3://bucket/prefix that holds the version.
        version: With --local: a published version. If left out: the current one.
    """

    texts: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[TEXT ...]")] = ()
    user_id: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    embedding: tuple[float, ...] = ()
    embeddings: str | None = None
    fallback: Literal["popular"] | None = None
    filter: str | None = None
    fields: tuple[str, ...] = ()
    plot: Path | None = None
    plot_explanation: Path | None = None
    k: int | None = None
    show: int = 4
    cutoff: tuple[CutoffKind, float] | None = None
    method: str | None = None
    params: Annotated[Params, tyro.conf.arg(name="")] = field(default_factory=Params)
    calls: int | None = None
    deadline_ms: float | None = None
    rounds: int = 1
    url: str = DEFAULT_URL
    local: bool = False
    ranker: RankerConfig = field(default_factory=RankerConfig)
    storage: str = STORAGE
    version: str | None = None

    def run(self) -> None:
        from rails_ray.cli import rendering

        if not (self.texts or self.user_id or self.history or self.features or self.embedding or self.embeddings):
            raise ValueError(
                "at least 1 query must be given, got none: give a text, or --user-id, --history, --features, "
                "--embedding or --embeddings"
            )
        facts, search, explain = self._here() if self.local else self._at_url()
        names, queries = zip(*self.queries(facts["query"]), strict=True)
        cutoff = None if self.cutoff is None else named_cutoff(self.cutoff)
        how: dict[str, Any] = {"fallback": self.fallback, **asdict(self.params)}
        how |= {"filter": read_filter(self.filter), "fields": list(self.fields)}
        how |= {} if self.method is None else {"method": self.method}
        budget = self.budget()
        best = search(queries, self.show, **how, **budget, cutoff={"top_k": self.show})
        cut = best
        if not budget:
            cut = search(queries, self.k, **how, cutoff=cutoff)
        certified = _certified([result.certificate for result in best.results])
        out.print(rendering.answers(names, cut, best, f"version {cut.version}, {best.method}: {certified}"))
        coverage = cut.coverage
        if coverage.num_chunks != coverage.chunks_trained:
            out.print(f"{coverage.chunks_trained} of {coverage.num_chunks} chunks of the model are trained")
        for name, result in zip(names, best.results, strict=True):
            if result.is_short:
                out.print(f"{name!r}: {MORE_BY_BUCKETS if best.method == 'inverted' else MORE_BY_INDEX}")
            if result.is_known is False:
                answer = "this is the answer to an empty query" if self.fallback is None else "these items are popular"
                out.print(f"training saw no part of {name!r}: {answer}")
            if result.error is not None:
                errors.print(f"rails-ray: {name!r}: {result.error}", highlight=False, markup=False, soft_wrap=True)
            elif budget and result.budget is not None:
                out.print(f"{name!r}: {_budget_line(result.budget)}", highlight=False, markup=False, soft_wrap=True)

        if self.plot is not None:
            self._draw_scores(self.plot, names, cut, partial(search, queries, **how))
        if self.plot_explanation is not None:
            terms = self.texts[0] if self.texts and "terms" in facts["columns"] else ""  # only BM25 stores terms
            self._draw_explanation(self.plot_explanation, names[0], queries[0], best, explain, terms)

    def _draw_scores(self, path: Path, names: Sequence[str], cut: SearchResponse, search: Search) -> None:
        """Draw what the cut-off keeps, and as many items below it."""
        from rails_ray.cli import plotting

        num = max([PLOTTED, *(2 * result.num_kept for result in cut.results)])
        listed = search(k=min(num, MOST_PLOTTED // len(names)), cutoff={"top_k": num})
        results = [
            own.model_copy(update={"num_kept": kept.num_kept, "threshold": kept.threshold})
            for own, kept in zip(listed.results, cut.results, strict=True)
        ]
        plotting.plot_scores(listed.model_copy(update={"results": results}), path, names)
        _say_drawn(path)

    def _draw_explanation(
        self, path: Path, name: str, query: Any, best: SearchResponse, explain: Explain, terms: str
    ) -> None:
        """Draw what adds up to the scores of the best items.

        Args:
            terms: the text whose words are what is added up; empty for an index that adds up something else.
        """
        from rails_ray.cli import plotting
        from rails_ray.modules.encoders.words import words

        if not best.results[0].items:
            raise ValueError(f"--plot-explanation needs an item that the first query finds, got none for {name!r}")
        answer = explain(query, best.results[0].items)
        cuts: tuple[Cut, ...] = ("unicode", "alphanumeric")  # the second is of earlier versions
        found = [list(dict.fromkeys(words(terms, cut))) for cut in cuts]
        num_terms = len(answer.items[0].cosines[0])
        labels = next((own for own in found if len(own) == num_terms), [])
        plotting.plot_explanation(answer, path, name, labels)
        _say_drawn(path)

    def budget(self) -> dict[str, Any]:
        """The field `budget` of the request, if there is one.

        Raises:
            ValueError: if a part of it is given without --calls.
        """
        if self.calls is None:
            if self.deadline_ms is not None or self.rounds != 1:
                raise ValueError("--deadline-ms and --rounds must be given with --calls, got no --calls")
            return {}
        if self.cutoff is not None:
            raise ValueError(f"--cutoff must be left out beside --calls, got {self.cutoff[0]}")
        return {"budget": {"calls": self.calls, "deadline_ms": self.deadline_ms, "rounds": self.rounds}}

    def _at_url(self) -> tuple[dict[str, Any], Search, Explain]:
        """The facts of the server's index, and what searches and explains there."""
        from rails_ray.serving import client

        return client.index(self.url), partial(client.search, self.url), partial(client.explain, self.url)

    def _here(self) -> tuple[dict[str, Any], Search, Explain]:
        """The facts of a version, and what searches and explains it in this process."""
        from rails_ray.serving import local

        check_folder(self.ranker)
        allowed = AllowedCode.given(self.allow_code).also(self.ranker.path)
        ranker = ranker_of(self.ranker, allowed) if self.ranker.path else None
        with out.status("loading the version"):
            version = local.open(self.storage, self.version, ranker=ranker, allow_code=self.allow_code)
        return version.facts, version.search, version.explain

    def queries(self, kinds: dict[str, str]) -> list[tuple[str, dict[str, Any]]]:
        """The queries, each with the name to show for it.

        Args:
            kinds: type of each field of a query that the index takes.
        """
        queries: list[tuple[str, dict[str, Any]]] = [(text, {"text": text}) for text in self.texts]
        queries += [(f"user {user}", {"user_id": typed(user, kinds.get("user_id"))}) for user in self.user_id]
        if self.history:
            history = [typed(item, kinds.get("history")) for item in self.history]
            queries.append((f"after {' '.join(self.history)}", {"history": history}))
        if self.features:
            queries.append((" ".join(self.features), {"features": _features(self.features)}))
        if self.embedding:
            if not all(map(math.isfinite, self.embedding)):
                raise ValueError(f"--embedding must be finite numbers, got {' '.join(map(str, self.embedding))}")
            queries.append((f"vector of {len(self.embedding)} numbers", {"embedding": self.embedding}))
        if self.embeddings:
            named = _read_json("--embeddings", self.embeddings, VECTORS)
            if not isinstance(named, dict):
                raise ValueError(f"--embeddings must be vectors by name, such as '{VECTORS}', got {self.embeddings!r}")
            queries.append((f"vectors {', '.join(named)}", {"embeddings": named}))
        return queries


def read_filter(text: str | None) -> Any:
    """A filter in JSON.

    Raises:
        ValueError: if it is no JSON.
    """
    return None if text is None else _read_json("--filter", text, '{"price": {"$lt": 20}}')


def _read_json(option: str, text: str, example: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{option} must be JSON, such as '{example}', got {text!r}: {error}") from None


def _say_drawn(path: Path) -> None:
    out.print(f"drawn in {path}", highlight=False, soft_wrap=True, markup=False)


def _budget_line(budget: BudgetResult) -> str:
    """Say what became of a budget."""
    order = "the heavy ranker's order" if budget.is_reranked else "the index's order"
    reason = "" if budget.reason is None else f": {budget.reason}"
    return f"{budget.calls_used} calls, {order}{reason}"


def _certified(certificates: list[CertificateResult]) -> str:
    """Sum up the certificates of all lists."""
    gaps = [certificate.gap for certificate in certificates if certificate.gap is not None]
    if len(gaps) < len(certificates):
        return "approximate"
    return "exact" if not max(gaps) else f"a missing item scores at most {max(gaps):.2g} more than the last item"


def typed(word: str, kind: str | None) -> str | int:
    """An id in the type that the index uses."""
    is_number = kind is not None and "int" in kind and word.removeprefix("-").isdecimal()
    return int(word) if is_number else word


def _features(words: tuple[str, ...]) -> dict[str, float]:
    """Feature values by feature number.

    Raises:
        ValueError: if a word is not NUMBER or NUMBER:VALUE, or a number comes twice.
    """
    values: dict[str, float] = {}
    for word in words:
        number, colon, value = word.partition(":")
        try:
            key, own = str(int(number)), float(value) if colon else 1.0
        except ValueError:
            own = math.nan
        if not math.isfinite(own):
            raise ValueError(f"--features must be numbers with finite values, such as 17:0.5, got {word!r}")
        if key in values:
            raise ValueError(f"--features must name each feature once, got {key} twice")
        values[key] = own
    return values
