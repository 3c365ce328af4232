"""The bench of peers: what it measures where little is installed, how it judges answers, and what it refuses."""

import asyncio
import re
import subprocess
import tomllib
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from jobs.benches import peers, peers_setting
from jobs.benches.peers import Arguments
from jobs.benches.peers_load import HttpConnection, loaded, one_by_one, post
from jobs.benches.peers_processes import memory_mb
from jobs.benches.peers_servers import Postgres
from jobs.benches.peers_setting import K, Setting, best_rows, judged, prepare, unit
from jobs.plots.peers import REPETITIONS, latest
from support.sources import ROOT

INSTALLED = ("faiss", "local", "by-hand", "single")


def setting_at(folder: Path, kind: Any = "hnsw") -> Setting:
    return Setting(folder, kind, folder / "store", 0.1, 1.0)


@pytest.mark.long
def test_peers_that_are_installed_everywhere_are_measured(tmp_path: Path) -> None:
    few = Arguments(data=tmp_path, num_items=(500,), repetitions=1, seconds=0.3, most_s=1.0, work=tmp_path)
    rows = list(peers.rows_of(few, list(INSTALLED)))
    assert [(row["kind"], row["peer"]) for row in rows] == [(kind, peer) for kind in few.kinds for peer in INSTALLED]
    for row in rows:
        assert "failed" not in row, row
        assert row["recall"] >= (1.0 if row["kind"] == "exact" else 0.98), row  # chosen at .99, of fewer queries
        assert row["ef_search"] == row["ladder"][-1]["ef_search"]
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["first_answer_s"] == pytest.approx(row["build_s"] + row["open_s"], abs=0.02)
        assert 0 < row["pss_mb"] <= row["rss_mb"]
        own = {"batch_ms", "batch_cpu_ms", "cpu_ms"}
        loads = {"queries_per_s_8", "queries_per_s_32", "queries_per_s_batch"}
        assert all(row[name] > 0 for name in (own if row["peer"] in ("faiss", "local") else loads)), row
    assert not list(tmp_path.iterdir())


def test_each_query_has_its_best_rows_and_those_that_tie(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    items = unit(generator.standard_normal((60, 4), dtype=np.float32))
    items[30:] = items[:30]
    queries = unit(generator.standard_normal((7, 4), dtype=np.float32))
    best = best_rows(items, queries)
    for query, rows in zip(queries, best, strict=True):
        scores = [float(np.dot(item, query)) for item in items]
        least = sorted(scores)[-K]
        assert set(rows[rows >= 0]) == {row for row, score in enumerate(scores) if score >= least - 1e-5}
    np.save(tmp_path / "best.npy", best)
    setting = setting_at(tmp_path)
    assert setting.recall([rows[:K] for rows in best]) == 1.0
    assert setting.recall([[*rows[:5], *rows[:5]] for rows in best]) == 0.5  # an item twice is one
    worst = [np.argsort(items @ query)[:K] for query in queries]
    assert setting.recall(worst) == 0.0


def test_fewer_items_than_k_are_all_best() -> None:
    vectors = unit(np.random.default_rng(0).standard_normal((4, 3), dtype=np.float32))
    assert [set(rows) for rows in best_rows(vectors, vectors)] == [{0, 1, 2, 3}] * 4


def test_drawn_vectors_are_no_queries_and_copies_have_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_setting, "MOST_DRAWN", 300)
    assert prepare(tmp_path, tmp_path / "none", 400) == "clustered, drawn, copies of 300 with noise of length 0.5"
    setting = setting_at(tmp_path)
    assert setting.vectors.shape == (400, 256)
    assert setting.queries.shape == (1000, 256)
    assert (setting.queries @ setting.vectors.T).max() < 0.9
    close = np.sum(setting.vectors[300:] * setting.vectors[:100], axis=1)
    assert close.mean() == pytest.approx(1 / np.sqrt(1.25), abs=0.01)
    assert np.linalg.norm(setting.vectors, axis=1) == pytest.approx(1.0)


@pytest.mark.parametrize(("recalls", "chosen"), [([0.5, 0.995, 1.0], 24), ([0.5] * 13, 1024)])
def test_the_smallest_beam_that_reaches_the_target_is_measured_again(
    tmp_path: Path, recalls: Sequence[float], chosen: int
) -> None:
    np.save(tmp_path / "best.npy", np.arange(K)[None].repeat(200, axis=0))
    setting = setting_at(tmp_path)
    shares, beams = iter(recalls), list[int]()
    known = dict[int, float]()

    def one_by_one(ef_search: int) -> tuple[dict[str, Any], list[list[int]]]:
        beams.append(ef_search)
        share = known.setdefault(ef_search, next(shares, 0.0) if ef_search not in known else 0.0)
        wrong = round(200 * K * (1 - share))
        rows = np.arange(K)[None].repeat(200, axis=0)
        rows.flat[:wrong] += 1000
        return {"p50_ms": 1.0}, rows.tolist()

    facts = judged(setting, one_by_one)
    assert facts["ef_search"] == chosen
    assert beams == [*setting.ladder[: setting.ladder.index(chosen) + 1], chosen]
    assert [rung["recall"] for rung in facts["ladder"]] == pytest.approx(recalls[: len(facts["ladder"])])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            Arguments(peers="faiss, elastic"),
            "--peers must be names among faiss, .*, with commas between, got 'elastic'",
        ),
        (Arguments(num_items=(500, 9)), "--num-items must be at least 10, as many as a query finds, got 9"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: Arguments, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        peers.main(arguments)


def test_peers_that_are_not_installed_are_left_out_and_those_that_fail_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list[dict[str, Any]]()
    monkeypatch.setattr(peers, "Record", lambda name: SimpleNamespace(row=lambda **row: rows.append(row)))
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "usearch" else object())
    broken = {"peer": "faiss", "kind": "exact", "num_items": 500, "failed": "why"}
    monkeypatch.setattr(peers, "rows_of", lambda arguments, names: [broken] if names == ["faiss"] else [])
    with pytest.raises(SystemExit, match="must succeed, got 1 that failed: faiss exact 500"):
        peers.main(Arguments(peers="usearch,faiss"))
    assert "usearch is left out: usearch must be installed (the extra bench)" in capsys.readouterr().out
    assert rows == [broken]


def test_a_process_that_fails_becomes_a_row_that_says_why(tmp_path: Path) -> None:
    setting = setting_at(tmp_path)
    failed = peers.measured("faiss", setting)  # there are no vectors
    assert list(failed) == ["failed"]
    assert failed["failed"].startswith(
        "RuntimeError: a peer's process must not fail, got exit code 1: FileNotFoundError: "
    )
    assert str(tmp_path) not in failed["failed"]
    assert not setting.store.exists()


def test_a_child_that_ended_since_it_was_listed_has_no_memory() -> None:
    started = subprocess.Popen(["sleep", "60"])
    ended, own = psutil.Process(started.pid), psutil.Process()
    started.kill()
    started.wait()
    tree: Any = SimpleNamespace(memory_full_info=own.memory_full_info, children=lambda recursive: [ended])
    assert memory_mb(tree)["rss_mb"] == pytest.approx(own.memory_info().rss / 2**20, rel=0.2)


async def answering(status: str) -> asyncio.Server:
    """A server of HTTP that reads two bytes as a body and answers with them, in pieces."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError):  # the client has gone
            while head := await reader.readuntil(b"\r\n\r\n"):
                assert b"Content-Length: 2\r\n" in head
                body = await reader.readexactly(2)
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n".encode() + body[:1])
                await asyncio.sleep(0)
                writer.write(body[1:])
                if status == "200 Close":
                    break

    return await asyncio.start_server(answer, "127.0.0.1", 0)


def port_of(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


def test_clients_keep_their_connections_and_each_waits_for_its_answer() -> None:
    async def measured() -> tuple[list[bytes], dict[str, float]]:
        async with await answering("200 OK") as server:
            requests = [post("/", number) for number in range(10, 16)]
            took, answers = await one_by_one(lambda: HttpConnection.to(port_of(server)), requests, 10.0)
            assert len(took) == 6
            return answers, await loaded(lambda: HttpConnection.to(port_of(server)), requests, 4, 0.1)

    answers, load = asyncio.run(measured())
    assert answers == [b"10", b"11", b"12", b"13", b"14", b"15"]
    assert load["per_s"] > 0
    assert 0 < load["client_cpu"] < 2


@pytest.mark.parametrize(
    ("status", "error", "sentence"),
    [
        ("429 Busy", ValueError, "must be answered with 200, got 429: b'10'"),
        ("200 Close", ConnectionError, "must keep its connections, got one that is closed"),
    ],
)
def test_an_answer_that_is_none_is_an_error(status: str, error: type[Exception], sentence: str) -> None:
    async def measured() -> None:
        async with await answering(status) as server:
            requests = [post("/", 10)] * 2
            await one_by_one(lambda: HttpConnection.to(port_of(server)), requests, 10.0)

    with pytest.raises(error, match=sentence):
        asyncio.run(measured())


def test_rows_of_postgres_are_grouped_by_query() -> None:
    assert Postgres().rows([(2, 7), (1, 5), (2, 3), (1, 9)]) == [[5, 9], [7, 3]]


def test_a_figure_is_of_the_last_repetitions_whichever_executions_they_are_of() -> None:
    rows: list[dict[str, Any]] = [
        {"peer": "faiss", "kind": "exact", "num_items": 500, "execution": execution} for execution in "aabcd"
    ]
    failed, other = rows[0] | {"execution": "e", "failed": "why"}, rows[0] | {"peer": "local"}
    environment = {"kind": "environment", "execution": "e"}
    assert latest([*rows[:4], other, rows[4], environment, failed]) == [*rows[-REPETITIONS:], other]
    assert [row["execution"] for row in rows[-REPETITIONS:]] == ["b", "c", "d"]


def test_the_extra_bench_brings_what_peers_need() -> None:
    """But Milvus Lite, as docs/figures.md says."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "rails-ray[serve]" in extras["bench"]
    named = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in [*extras["bench"], *extras["serve"]]}
    needed = {package for peer in peers.PEERS.values() for package in peer.packages}
    assert needed - named == {"faiss", "milvus_lite"}, "FAISS is of the core"
    assert {"psutil", "httptools", "uvloop"} <= named, "of the bench itself"
