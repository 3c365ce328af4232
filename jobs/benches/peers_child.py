"""A process of `peers` of its own, so that what it holds in memory is a peer's alone.

    python -m jobs.benches.peers_child build|search PEER SETTING..

`build` writes a peer's store. `search` opens it in this process, and prints a line when it has its first answer and one
with what it measured.
"""

import json
import sys
import time
from typing import Any

import psutil

from jobs.benches.peers_in_process import IN_PROCESS, Search
from jobs.benches.peers_processes import cpu_s, memory_mb
from jobs.benches.peers_servers import SERVERS
from jobs.benches.peers_setting import BATCH, Setting, judged, percentiles


def main(words: list[str]) -> None:
    task, peer, *rest = words
    setting = Setting.of_words(rest)
    if task == "build":
        (IN_PROCESS | SERVERS)[peer].build(setting)
        return
    search = IN_PROCESS[peer].open(setting)
    search(setting.queries[:1], setting.ladder[0])
    print(json.dumps({"is_open": True}), flush=True)
    print(json.dumps(measured(search, setting)), flush=True)


def measured(search: Search, setting: Setting) -> dict[str, Any]:
    """Times of a query and of a batch, and memory, with the beam that reaches the target."""
    facts = judged(setting, lambda ef_search: one_by_one(search, setting, ef_search))
    return facts | memory_mb(psutil.Process()) | in_batches(search, setting, facts["ef_search"])


def one_by_one(search: Search, setting: Setting, ef_search: int) -> tuple[dict[str, Any], list[list[int]]]:
    """Times of the queries that begin within `most_s`, and the items that each found."""
    took, found = list[float](), list[list[int]]()
    before, ends = cpu_s(), time.perf_counter() + setting.most_s
    for number in range(len(setting.queries)):
        started = time.perf_counter()
        [rows] = search(setting.queries[number : number + 1], ef_search)
        took.append(time.perf_counter() - started)
        found.append([int(row) for row in rows])
        if started > ends:
            break
    return {**percentiles(took), "cpu_ms": round(1e3 * (cpu_s() - before) / len(took), 3)}, found


def in_batches(search: Search, setting: Setting, ef_search: int) -> dict[str, float]:
    """Milliseconds of wall and of CPU of a batch, and queries a second."""
    batches = setting.in_parts(BATCH)
    search(batches[0], ef_search)
    number = 0
    before, started = cpu_s(), time.perf_counter()
    while (now := time.perf_counter()) < started + setting.seconds or number == 0:
        search(batches[number % len(batches)], ef_search)
        number += 1
    lasted = now - started
    return {
        "batch_ms": round(1e3 * lasted / number, 3),
        "batch_cpu_ms": round(1e3 * (cpu_s() - before) / number, 3),
        "queries_per_s_batch": round(BATCH * number / lasted, 1),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
