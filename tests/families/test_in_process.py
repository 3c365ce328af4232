"""Encoding in one process, without a cluster: the bytes of any cutting, resumed, and what cannot be done."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray.cli.main import main
from rails_ray.families import running
from rails_ray.families.config import DataConfig
from rails_ray.families.encoding import EncodeOptions, ShardBy, encode, whole_gpus
from rails_ray.families.in_process import InProcess
from rails_ray.families.recipes import by_name
from rails_ray.families.version import Version
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.serving import local
from rails_ray.storage import versions
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data, write_vector_data
from support.examples import small_config, write_untrained_run
from support.hidden import run_without
from support.text_vectors import save_sentence_transformer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Storage with a run `r`, which encodes texts."""
    config = replace(small_config(), data=DataConfig(folder=str(write_text_data(tmp_path / "texts"))))
    write_untrained_run(Storage(str(tmp_path / "storage")), "r", config)
    return tmp_path / "storage"


def encoded(root: Path, version: str, options: EncodeOptions | None = None) -> Encoded:
    return encode(InProcess(), str(root), "r", replace(options or EncodeOptions(part_items=7), version=version))


@pytest.mark.parametrize("shard_by", ["position", "hash"])
def test_what_is_missing_is_made_again(root: Path, shard_by: ShardBy) -> None:
    options = EncodeOptions(part_items=7, shard_by=shard_by)
    first, second = encoded(root, "a", options), encoded(root, "b", options)
    (root / "versions" / "b" / "encoded.json").unlink()
    for record in list((root / "versions" / "b" / "parts").glob("*.json"))[::2]:
        record.unlink()
    assert encoded(root, "b", options).parts == second.parts == first.parts


def test_an_index_is_built_and_a_version_searched(root: Path) -> None:
    made = encoded(root, "v", EncodeOptions(stored={"index": HnswConfig(M=8), "index_of": "average"}))
    assert len(made.indexes) == 2
    versions.publish(Storage(str(root)), made, "2026-01-01T00:00:00Z")
    opened = local.open(str(root))
    assert len(opened.search([{"text": "red"}], k=5).results[0].items) == 5
    assert len(Version(Storage(str(root)), made).items().item_ids) == 60


def test_progress_counts_every_item(root: Path) -> None:
    shown = list[tuple[int, int, str]]()
    encode(InProcess(), str(root), "r", EncodeOptions(version="v"), lambda *step: shown.append(step))
    assert shown[0][:2] == (0, 60)
    assert shown[-1][:2] == (60, 60)
    assert [done for done, _, _ in shown] == sorted(done for done, _, _ in shown)


def test_threads_are_left_as_they_were(root: Path) -> None:
    before = torch.get_num_threads()
    encoded(root, "v")
    assert torch.get_num_threads() == before


def test_a_gpu_that_is_not_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="use_gpu must be left out on a machine without a GPU that torch can use"):
        encoded(root, "v", EncodeOptions(use_gpu=True))


@pytest.mark.parametrize(
    ("num_workers", "worker_gpus", "expected"),
    [(3, 1.0, 3), (3, 2.0, 6), (4, 0.25, 1), (5, 0.25, 2), (5, 0.4, 3), (2, 0.6, 2), (1, 0.1, 1)],
)
def test_parts_of_a_gpu_are_of_one_gpu(num_workers: int, worker_gpus: float, expected: int) -> None:
    assert whole_gpus(num_workers, worker_gpus) == expected


def test_workers_have_the_part_of_a_gpu_that_is_asked_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = list[tuple[int, float]]()

    class Counting(InProcess):
        """Has two GPUs, for which the CPU stands."""

        def has_gpus(self, number: int) -> bool:
            return number <= 2

        def write(self, work: Any, num_workers: int, num_gpus: float, *how: Any) -> None:
            reserved.append((num_workers, num_gpus))
            super().write(work, 1, 0.0, *how)

    for version, options in {
        "fits": EncodeOptions(num_workers=8, worker_gpus=0.25),
        "none": EncodeOptions(num_workers=9, worker_gpus=0.25),
        "asked": EncodeOptions(num_workers=9, worker_gpus=0.25, use_gpu=True),
        "refused": EncodeOptions(num_workers=1, use_gpu=False),
    }.items():
        encode(Counting(), str(root), "r", replace(options, version=version))
    assert reserved == [(8, 0.25), (9, 0.0), (9, 0.25), (1, 0.0)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"num_workers": 0}, "num_workers must be at least 1, got 0"),
        ({"part_items": 0}, "part_items must be at least 1, got 0"),
        ({"num_shards": -1}, "num_shards must be at least 1, got -1"),
        ({"min_chunks": 0}, "min_chunks must be at least 1, got 0"),
        (
            {"worker_gpus": 0},
            "worker_gpus must be a part of one GPU or a whole number above 0, got 0: to use no GPU, set .*",
        ),
        ({"worker_gpus": float("nan")}, "worker_gpus must be a part of one GPU or a whole number above 0, got nan: .*"),
        (
            {"worker_gpus": 1.5},
            "worker_gpus must be a part of one GPU or a whole number above 0, got 1.5: to use no GPU.*",
        ),
        ({"shard_by": "size"}, "shard_by must be one of position, hash, got 'size'"),
        ({"new_codes": "random"}, "new_codes must be one of least_loaded, predicted, got 'random'"),
    ],
)
def test_options_that_cannot_be(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{expected}$"):
        EncodeOptions(**given)


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """Items of one vector, of which two are zeros."""
    folder = write_vector_data(tmp_path / "vectors")
    items = pq.read_table(folder / "items.parquet")
    rows = items["vector"].to_pylist()
    rows[7] = rows[50] = [0.0] * 7
    pq.write_table(items.set_column(1, "vector", pa.array(rows)), folder / "items.parquet")
    return folder


def encode_vectors(tmp_path: Path, folder: Path, *options: str) -> int:
    words = ["encode", "--recipe", "vector-cosine", "--folder", str(folder), "--items", str(folder / "items.parquet")]
    return main([*words, "--version", "v", "--storage", str(tmp_path / "storage"), *options])


def test_vectors_of_zeros_are_refused_or_found_last(
    vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert encode_vectors(tmp_path, vectors) == 2
    sentence = (
        "got zeros for 2 of 60, the first of them 'item-7': leave them out, or keep them with --zero-vectors keep"
    )
    assert sentence in capsys.readouterr().err
    assert encode_vectors(tmp_path, vectors, "--zero-vectors", "keep", "--index", "hnsw") == 0
    assert main(["publish", "--version", "v", "--storage", str(tmp_path / "storage")]) == 0
    opened = local.open(str(tmp_path / "storage"))
    for method in ("brute_force", "ann"):
        [result] = opened.search([[1.0] * 7], k=60, method=method).results
        assert result.items[-2:] == ["item-7", "item-50"]
        assert result.scores[-2:] == pytest.approx([-1.0, -1.0])


def test_a_command_says_each_note_once(vectors: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    items = pq.read_table(vectors / "items.parquet").append_column("price", pa.array([1.0] * 60))
    pq.write_table(items, vectors / "items.parquet")
    for storage in ("a", "b"):  # and again by the next command
        caplog.clear()
        assert encode_vectors(tmp_path / storage, vectors, "--zero-vectors", "keep") == 0
        sentence = "items: price (float) is not stored: --data.attributes price stores it"
        assert caplog.messages.count(sentence) == 1


def test_the_next_command_can_be_copied(vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "of mine #1"
    assert encode_vectors(root, vectors, "--zero-vectors", "keep") == 0
    words = shlex.split(capsys.readouterr().out.partition("next: rails-ray ")[2])
    assert words == ["publish", "--version", "v", "--storage", str(root / "storage")]
    assert main(words) == 0


def test_codes_cannot_stand_for_zeros(vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--zero-vectors", "keep", "--codes", "7x4"]
    assert encode_vectors(tmp_path, vectors, *options) == 2
    assert "codes must stand for directions, got 2 items with a vector of zeros: leave them out, or keep vectors" in (
        capsys.readouterr().err
    )


@pytest.mark.long
def test_a_version_reads_texts_by_the_model_that_it_was_encoded_with(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    model = save_sentence_transformer(tmp_path / "model", ["red", "blue", "hat"])
    texts = ["red hat", "blue", "hat"]
    rows = model.encode_document(texts)
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"item_id": texts, "vector": rows.tolist()}), tmp_path / "data" / "items.parquet")
    assert encode_vectors(tmp_path, tmp_path / "data", "--query-encoder", str(tmp_path / "model")) == 0
    assert main(["publish", "--version", "v", "--storage", str(tmp_path / "storage")]) == 0
    found = local.open(str(tmp_path / "storage")).search(texts, k=1).results
    assert [own.items for own in found] == [[text] for text in texts]


@pytest.mark.long
def test_the_commands_that_sentences_name_lead_from_a_file_to_an_answer_to_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers")
    model = save_sentence_transformer(tmp_path / "model", ["red", "blue", "hat"])
    texts = ["red hat", "blue", "hat"]
    np.save(tmp_path / "v.npy", model.encode_document(texts))
    storage = ["--storage", str(tmp_path / "storage")]

    def command(*words: str, code: int = 0) -> str:
        assert main(list(words)) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    folder = str(tmp_path / "my data")
    named = command("index", "import", str(tmp_path / "v.npy"), "--folder", folder).partition("next: rails-ray ")[2]
    words = shlex.split(named)
    assert words == ["encode", "--recipe", "vector-cosine", "--folder", folder]
    command(*words, "--version", "plain", *storage)
    command("publish", "--version", "plain", *storage)
    refused = command("query", "--local", "blue", *storage, code=2)
    [named] = re.findall("`rails-ray (.*)`", refused)
    words = [str(tmp_path / "model") if word == "MODEL" else word for word in named.split()]
    assert words == ["encode", "--run", "plain", "--query-encoder", str(tmp_path / "model")]
    command(*words, "--version", "for-texts", *storage)
    command("publish", "--version", "for-texts", *storage)
    assert "blue" in command("query", "--local", "blue", *storage)
    found = local.open(storage[1]).search(texts, k=1).results
    assert [own.items for own in found] == [[0], [1], [2]]


def test_a_recipe_that_trains_is_refused(root: Path, tmp_path: Path) -> None:
    config = replace(by_name("text-mol"), data=DataConfig(folder=str(tmp_path / "texts")))
    with pytest.raises(ValueError, match="run_config must train nothing, got text-mol: train it on a cluster"):
        running.fit_run(config, str(root), "t")


def test_a_run_that_is_finished_is_returned(tmp_path: Path) -> None:
    folder = str(write_vector_data(tmp_path / "vectors"))
    config = replace(by_name("vector-cosine"), data=DataConfig(folder=folder))
    first = running.fit_run(config, str(tmp_path / "storage"), "v")
    assert running.fit_run(config, str(tmp_path / "storage"), "v") == first


@pytest.mark.long
def test_the_command_needs_no_ray(tmp_path: Path) -> None:
    folder, storage = str(write_vector_data(tmp_path / "vectors")), str(tmp_path / "storage")
    words = ["encode", "--recipe", "vector-cosine", "--folder", folder, "--version", "v", "--storage", storage]
    done = run_without({"ray"}, f"from rails_ray.cli.main import main\nraise SystemExit(main({words!r}))")
    assert done.returncode == 0, done.stderr
    assert "version v: 60 items in 1 shard\n" in done.stdout
    assert main(["publish", "--version", "v", "--storage", storage]) == 0
    assert len(local.open(storage).search([{"embedding": [1.0] * 7}], k=3).results[0].items) == 3
