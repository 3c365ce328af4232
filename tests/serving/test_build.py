"""`local.build`: a version of vectors, made and searched in this process."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rails_ray import local
from rails_ray.errors import ConflictError, UnsupportedError
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.storage import parts
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.versions import read_manifest

GENERATOR = np.random.default_rng(0)
VECTORS = GENERATOR.standard_normal((300, 7)) * GENERATOR.uniform(0.1, 10, (300, 1))
QUERIES = GENERATOR.standard_normal((4, 7))
IDS = [f"item-{row}" for row in range(300)]


def cosines(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(vectors, axis=1)
    return (queries @ vectors.T) / lengths


@pytest.mark.parametrize("method", ["brute_force", "two_pass", "average"])
def test_it_finds_the_largest_cosines(method: str) -> None:
    found = local.build(VECTORS, IDS).search(QUERIES.tolist(), k=5, method=method).results
    expected = cosines(QUERIES, VECTORS)
    for result, line in zip(found, expected, strict=True):
        best = np.argsort(-line)[:5]
        assert result.items == [IDS[row] for row in best]
        np.testing.assert_allclose(result.scores, line[best], atol=1e-6)


@pytest.mark.parametrize("index", ["flat", "hnsw", "ivf", HnswConfig(M=4, storage="fp16")])
def test_it_searches_an_index(index: Any, tmp_path: Path) -> None:
    version = local.build(VECTORS, IDS, index=index, folder=str(tmp_path))
    found = version.search(QUERIES, k=5, method="ann", **({"nprobe": 7} if index == "ivf" else {})).results
    assert [result.items for result in found] == [result.items for result in version.search(QUERIES, k=5).results]
    stored = [] if index == "flat" else [("average", 0)]
    assert [(entry.name, entry.shard) for entry in read_manifest(Storage(str(tmp_path))).indexes] == stored


def test_an_index_that_there_is_not() -> None:
    with pytest.raises(ValueError, match=r"^index must be one of flat, ivf, hnsw, or the config of one, got 'annoy'$"):
        local.build(VECTORS, index="annoy")


def test_ids_and_titles_are_as_given() -> None:
    [row] = local.build(VECTORS).search([VECTORS[17]], k=1).results
    assert row.items == [17]
    [numbered] = local.build(VECTORS, np.arange(300) + 10, titles=IDS).search([VECTORS[17]], k=1).results
    assert (numbered.items, numbered.titles) == ([27], ["item-17"])


def test_vectors_of_zeros_are_refused_by_their_number() -> None:
    with pytest.raises(
        ValueError,
        match=r"^vectors of items must hold a number other than 0 in float32, as a cosine compares directions, got "
        r"zeros for 2 of 4, the first of them 'b': leave them out, or keep them with zero_vectors='keep', to find "
        r"them last$",
    ):
        local.build([[1.0, 0.0], [0.0, -0.0], [1.0, 1.0], [1e-60, 0.0]], ["a", "b", "c", "d"])


@pytest.mark.parametrize("method", ["brute_force", "two_pass", "per_embedding", "average", "combined", "ann"])
def test_vectors_of_zeros_that_are_kept_come_last(method: str) -> None:
    """Even behind the opposite of the query; numbers below the normal ones of float32 are directions."""
    opened = local.build([[0, 0], [1, 0], [-1, 0], [-0.0, 0], [1e-40, 1e-41]], list("abcde"), zero_vectors="keep")
    [found] = opened.search([[2.0, 0.0]], k=5, method=method).results
    assert found.items == ["b", "e", "c", "a", "d"]
    assert found.scores[:3] == pytest.approx([1, 10 / 101**0.5, -1], abs=1e-5)
    assert found.scores[3] == found.scores[4] < -1
    assert found.certificate.is_exact
    [fewer] = opened.search([{"embedding": [2.0, 0.0], "exclude": ["a", "c"]}], k=3, method=method).results
    assert (fewer.items, fewer.num_searched) == (["b", "e", "d"], 3)
    [explained] = opened.explain([2.0, 0.0], ["d"]).items
    assert explained.score == found.scores[4]


@pytest.mark.parametrize("cutoff", [{"score": -1.0}, {"score": 0.5}])
def test_no_score_reaches_a_vector_of_zeros(cutoff: dict[str, float]) -> None:
    opened = local.build([[0, 0], [1, 0], [-1, 0]], zero_vectors="keep")
    [found] = opened.search([[2.0, 0.0]], cutoff=cutoff).results
    assert found.items == [1, 2][: len(found.items)]
    assert not found.is_truncated
    assert found.certificate.is_exact


def test_a_build_that_keeps_zeros_keeps_them_in_storage(tmp_path: Path) -> None:
    folder = str(tmp_path)
    kept = local.build([[0, 0], [1, 0]], folder=folder, zero_vectors="keep").search([[-1.0, 0.0]], k=2)
    assert local.open(folder).search([[-1.0, 0.0]], k=2).results == kept.results
    assert kept.results[0].items == [1, 0]


def test_nothing_is_kept_unless_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "passing"))
    (tmp_path / "passing").mkdir()
    opened = local.build(VECTORS, IDS)
    assert not list((tmp_path / "passing").iterdir())
    assert opened.search([VECTORS[3]], k=1).results[0].items == ["item-3"]
    folder = str(tmp_path / "mine")
    kept = local.build(VECTORS, IDS, folder=folder)
    again = local.open(folder)
    assert kept.search(QUERIES.tolist(), k=3).results == again.search(QUERIES.tolist(), k=3).results
    with pytest.raises(ConflictError, match=r"version must be a new name in .*mine, got 'v1': name another"):
        local.build(VECTORS, IDS, folder=folder)
    local.build(VECTORS[:5], folder=folder, version="v2")
    assert local.open(folder).facts["num_items"] == 5


def test_parts_are_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_ITEMS", 64)
    opened = local.build(torch.from_numpy(VECTORS).float(), IDS, titles=IDS)
    assert len(opened.manifest.parts) == 5
    for result, line in zip(opened.search(QUERIES, k=9).results, cosines(QUERIES, VECTORS), strict=True):
        assert result.items == result.titles == [IDS[row] for row in np.argsort(-line)[:9]]


def test_a_build_that_was_cut_off_is_never_a_part_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_ITEMS", 64)
    write, written = parts.write_part, list[int]()

    def cut_off(storage: Storage, version: str, part: parts.PlannedPart, table: pa.Table) -> None:
        write(storage, version, part, table)
        written.append(part.first_row)
        if len(written) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(parts, "write_part", cut_off)
        with pytest.raises(KeyboardInterrupt):
            local.build(VECTORS, IDS, folder=str(tmp_path))
    with pytest.raises(ValueError, match="version 'v1' must keep the items that it was begun with"):
        local.build(-VECTORS, IDS, folder=str(tmp_path))
    [found] = local.build(VECTORS, IDS, folder=str(tmp_path)).search([VECTORS[5]], k=1).results
    assert found.items == ["item-5"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vectors": [[1, 2], [3]]}, r"vectors must be numbers \[items, width\], got: .*inhomogeneous"),
        ({"vectors": "red"}, r"vectors must be numbers \[items, width\], got an array of <U3"),
        ({"vectors": [1.0, 2.0]}, r"vectors must be \[items, width\], of one item at least, got 2"),
        ({"vectors": np.empty((0, 3))}, r"vectors must be .*, of one item at least, got 0 x 3"),
        ({"vectors": [[1, 2], [np.nan, 1]]}, "vectors must be finite in float32, got NaN or infinity in row 1"),
        ({"vectors": [[1e39, 1]]}, "vectors must be finite in float32, got NaN or infinity in row 0"),
        ({"vectors": [["1", "2"]]}, "vectors must be numbers .*, got an array of <U1"),
        ({"vectors": [[1 + 2j, 0]]}, "vectors must be numbers .*, got an array of complex128"),
        ({"vectors": [[True, False]]}, "vectors must be numbers .*, got an array of bool"),
        ({"vectors": torch.ones(2, 2, requires_grad=True)}, "vectors must be numbers .*, got: Can't call numpy"),
        ({"version": "../other"}, "version must be made of letters, digits, .*, got '../other'"),
        ({"ids": [2**64, 1]}, "ids must be integers of 64 bits, all signed or all unsigned, got: "),
        ({"ids": [2**63, -1]}, "ids must be integers of 64 bits, all signed or all unsigned, got: "),
        ({"ids": [1]}, "ids must be one for each of the 2 items, got 1"),
        ({"ids": [1, 1]}, "ids must be distinct, got 1 twice or more"),
        ({"ids": [1, "a"]}, "ids must be all integers or all strings, got: "),
        ({"ids": [None, 1]}, "ids must be all integers or all strings, got none for some items"),
        ({"ids": [0.5, 1.5]}, "ids must be all integers or all strings, got double"),
        ({"titles": ["a"]}, "titles must be one for each of the 2 items, got 1"),
        ({"titles": [1, 2]}, "titles must be strings, got int64"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        local.build(**{"vectors": [[1.0, 2.0], [3.0, 4.0]], **arguments})


def test_without_an_encoder_the_refusal_names_the_option() -> None:
    plain = local.build(np.eye(3))
    assert plain.facts["query"] == {"embedding": "list<float>"}
    with pytest.raises(
        ValueError,
        match=r"^queries\[1\] must be given by embedding for this index, got text: to search by text, make a version "
        r"with `local\.build\(vectors, query_encoder=MODEL\)`, where MODEL is the model that made the items' vectors$",
    ):
        plain.search([[1.0, 0.0, 0.0], "red car"])
    with pytest.raises(
        UnsupportedError, match=r"must make one vector of a query, got one that does not: to search by text"
    ):
        plain.embed(["red car"])
