"""Heavy rankers: their scores, and what somebody else's may do wrong."""

import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rails_ray.allowed_code import AllowedCode
from rails_ray.errors import UnavailableError
from rails_ray.reranking.rankers import Candidate, HeavyRanker, RankerCandidates, candidates_of
from rails_ray.reranking.rankers.calling import ranker_of, score_all, scores_of
from rails_ray.reranking.rankers.molecules import MoleculeRanker
from rails_ray.reranking.rankers.syntax_trees import SyntaxTreeRanker, tree_of
from rails_ray.schema.ranker import RankerConfig

MOLECULES = ["CC(=O)Oc1ccccc1C(=O)O", "OC(=O)c1ccccc1O", "CCO", "Cn1cnc2c1c(=O)n(C)c(=O)n2C"]
PROGRAMS = [
    "def f(x):\n    return x + 1",
    "def g(y):\n    return y + 2",
    "class A:\n    def f(self):\n        for i in range(3):\n            print(i)",
    "import os",
]
MEMBERS: dict[str, tuple[str, str, list[str]]] = {
    "molecules": ("rails_ray.reranking.rankers.molecules:MoleculeRanker", "text", MOLECULES),
    "syntax trees": ("rails_ray.reranking.rankers.syntax_trees:SyntaxTreeRanker", "text", PROGRAMS),
}
members = pytest.mark.parametrize(("path", "field", "texts"), MEMBERS.values(), ids=MEMBERS)


def candidates(field: str, texts: list[str]) -> list[Candidate]:
    return [Candidate(row, {field: text}) for row, text in enumerate(texts)]


@members
def test_an_item_is_most_like_itself_whoever_stands_beside_it(path: str, field: str, texts: list[str]) -> None:
    ranker = ranker_of(RankerConfig(path=path))
    assert isinstance(ranker, HeavyRanker)
    for row, text in enumerate(texts):
        scores = scores_of(ranker, {field: text}, candidates(field, texts))
        assert scores[row] == scores.max()
        assert scores[row] == pytest.approx(1, abs=0.02)
        assert ((scores >= 0) & (scores <= 1.001)).all()
        alone = scores_of(ranker, {field: text}, candidates(field, texts[1:2]))
        assert alone[0] == pytest.approx(scores[1], abs=1e-9)
    assert scores_of(ranker, {field: texts[0]}, []).shape == (0,)


@pytest.mark.parametrize(
    ("ranker", "field", "told"),
    [
        (MoleculeRanker(), "text", "a molecule must be a SMILES string, got 'no molecule'"),
        (SyntaxTreeRanker(), "text", "a program must be Python, got: "),
    ],
)
def test_items_that_are_none(ranker: HeavyRanker, field: str, told: str) -> None:
    with pytest.raises(UnavailableError, match=f"the heavy ranker must score 1 items, got ValueError: {told}"):
        scores_of(ranker, {field: "no molecule"}, candidates(field, ["no molecule"]))


@pytest.mark.parametrize(
    ("path", "module", "package"),
    [
        ("molecules:MoleculeRanker", "rdkit.Chem.rdShapeAlign", "rdkit"),
        ("syntax_trees:SyntaxTreeRanker", "apted", "apted"),
        ("boosted:BoostedRanker", "lightgbm", "lightgbm"),
    ],
)
def test_a_ranker_whose_package_is_missing_is_not_made(
    path: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    told = rf"this ranker needs the package {package}, got none: pip install 'rails-ray\[rankers\]'$"
    with pytest.raises(ValueError, match=told):
        ranker_of(RankerConfig(path=f"rails_ray.reranking.rankers.{path}", folder="any"))


def test_equal_programs_differ_by_names_alone() -> None:
    assert tree_of(PROGRAMS[0]) == tree_of(PROGRAMS[1])


def raising(query: Any, asked: Any) -> list[float]:
    raise RuntimeError("out of memory\nand more")


@pytest.mark.parametrize(
    ("ranker", "told"),
    [
        (raising, "the heavy ranker must score 2 items, got RuntimeError: out of memory$"),
        (lambda query, asked: [1.0], r"must answer with 2 scores, one for each item, got an answer of shape \[1\]"),
        (lambda query, asked: 3.0, r"got an answer of shape \[\]"),
        (lambda query, asked: ["a", "b"], "got ValueError: could not convert string to float: 'a'"),
        (lambda query, asked: [0.5, np.nan], "must answer with finite scores, got nan for item 1"),
        (lambda query, asked: [0.5, 1e300], "must answer with finite scores, got 1e.300 for item 1"),
        (lambda query, asked: [np.inf, 0.5], "must answer with finite scores, got inf for item 0"),
    ],
)
def test_a_ranker_that_does_wrong_fails_its_query_in_a_sentence(ranker: Callable[..., Any], told: str) -> None:
    with pytest.raises(UnavailableError, match=told):
        scores_of(ranker, {"text": "a"}, candidates("text", ["a", "b"]))


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("no_such_module:rank", "No module named 'no_such_module'"),
        ("math:no_such_name", "has no attribute 'no_such_name'"),
        ("math", "MODULE:NAME, got 'math'"),
        (":rank", "MODULE:NAME, got ':rank'"),
        ("math:pi", "got 'math:pi', which cannot be called"),
        ("rails_ray.reranking.rankers.calling:HeavyRanker", "Protocols cannot be instantiated"),
    ],
)
def test_paths_that_lead_to_no_ranker(path: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ranker_of(RankerConfig(path=path), AllowedCode().also(path))


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_an_item_that_fails_leaves_one_hole(at_once: int) -> None:
    def ranker(query: Any, asked: Any) -> list[float]:
        if any(candidate.item_id == 4 for candidate in asked):
            raise RuntimeError("not this one")
        return [candidate.item_id / 10 for candidate in asked]

    found = score_all(ranker, {}, candidates("text", list("abcdefghij")), at_once)
    assert np.flatnonzero(np.isnan(found.scores)).tolist() == [4]
    assert np.delete(found.scores, 4).tolist() == [0, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert found.num_calls == {1: 10, 3: 10 + 3 + 2, 100: 10 + 10 + 5 + 3 + 2}[at_once]


def test_a_call_that_hangs_leaves_a_hole_for_each_of_its_items() -> None:
    """The items of other calls are scored, and a call that fails in time is still tried in halves."""
    held, done = threading.Event(), threading.Event()

    def ranker(query: Any, asked: Any) -> list[float]:
        if any(candidate.item_id == 4 for candidate in asked):
            held.wait(60)
            done.set()
        if any(candidate.item_id == 7 for candidate in asked):
            raise RuntimeError("not this one")
        return [candidate.item_id / 10 for candidate in asked]

    found = score_all(ranker, {}, candidates("text", list("abcdefghij")), 3, timeout_s=0.2)
    assert np.flatnonzero(np.isnan(found.scores)).tolist() == [3, 4, 5, 7]
    assert found.num_calls == 10 + 3 + 2
    assert found.reason == "the heavy ranker must answer within 0.2 s, got no answer"
    held.set()
    assert done.wait(10)


class WithFolder:
    """A ranker that was trained."""

    def __init__(self, folder: str = "none") -> None:
        self.folder = folder

    def __call__(self, query: Any, asked: Any) -> list[float]:
        return [0.0] * len(asked)


@pytest.mark.parametrize("folder", ["", "here"])
def test_a_class_is_made_with_its_folder(folder: str) -> None:
    made: Any = ranker_of(RankerConfig(path=f"{__name__}:WithFolder", folder=folder), AllowedCode((__name__,)))
    assert made.folder == (folder or "none")


def test_candidates_in_two_lists_are_a_sequence_of_candidates() -> None:
    listed = candidates_of([1, 2, 3], ["a", "b", "c"])
    packed = RankerCandidates.of(listed)
    assert list(packed) == [packed[number] for number in range(3)] == listed
    assert list(packed[1:]) == listed[1:]
    assert len(packed) == 3
    assert list(pickle.loads(pickle.dumps(packed))) == listed
    assert RankerCandidates([], [])[:1].texts == []
