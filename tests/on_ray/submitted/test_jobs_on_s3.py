"""Jobs go the whole way on S3: one is killed and goes on when it is submitted again; what it trained is published."""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
from safetensors import safe_open

from rails_ray.storage import manifest, runs, versions
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data
from support.head_node import ROOT, HeadNode, Heard, submit
from support.processes import wait_for, with_token
from support.s3_server import SECRET, new_bucket, use_s3

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

NUM_STEPS = 150
MARK_S = 1e6


@dataclass(frozen=True)
class OnS3:
    """
    root: of the storage.
    data: folder of the tables.
    environment: what a job must know to reach them.
    """

    root: str
    data: str
    environment: dict[str, str]

    @property
    def storage(self) -> Storage:
        """A new one, whose first request makes a client of S3: that takes longer than the request."""
        return Storage(self.root)


def with_riddles(folder: Path) -> Path:
    """The data set and ten test queries which nothing leads from to their items, so that no model finds them all."""
    for table, more in {
        "queries": {"query_id": range(1000, 1010), "text": [f"riddle{n}" for n in range(10)], "split": ["test"] * 10},
        "relevance": {"query_id": range(1000, 1010), "item_id": [f"item-{6 * n}" for n in range(10)]},
    }.items():
        path = folder / f"{table}.parquet"
        old = pq.read_table(path)
        pq.write_table(pa.concat_tables([old, pa.table({k: list(v) for k, v in more.items()}, old.schema)]), path)
    return folder


@pytest.fixture(scope="module")
def s3_root(s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnS3]:
    with pytest.MonkeyPatch.context() as environment:
        use_s3(environment, s3_server)
        bucket = f"s3://{new_bucket(s3_server)}"
        data = Storage(f"{bucket}/data")
        for table in with_riddles(write_text_data(tmp_path_factory.mktemp("data"))).iterdir():
            data.write(table.name, table.read_bytes())
        names = [name for name in os.environ if name.startswith("AWS_") or name.upper() == "NO_PROXY"]
        yield OnS3(f"{bucket}/storage", str(data), {name: os.environ[name] for name in names})


def job(head: HeadNode, s3_root: OnS3, name: str, *arguments: str, heard: Heard | None = None) -> Heard:
    """A job of this repository on the storage on S3."""
    ended = submit(
        head,
        *("python", "-m", f"rails_ray.jobs.{name}", *arguments, "--storage", s3_root.root),
        heard=heard,
        working_dir=str(ROOT),
        environment=s3_root.environment,
    )
    assert SECRET not in ended.log
    return ended


def training(s3_root: OnS3) -> list[str]:
    """Arguments of a training that takes a moment, with negatives from both workers, of the run "first"."""
    sizes = {
        "encoder.width": 8,
        "encoder.num-heads": 2,
        "encoder.hidden": 8,
        "encoder.max-length": 8,
        "encoder.vocabulary-size": 300,
        "encoder.dropout": 0,
        "components.width": 6,
        "components.gate-hidden": 5,
        "similarity.num-query-components": 2,
        "similarity.num-item-components": 2,
        "similarity.gate-hidden": 5,
        "training.batch-size": 16,
        "training.learning-rate": 1e-2,
        "training.num-steps": NUM_STEPS,
    }
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    return ["text-transformer-mol", "--run", "first", "--workers", "2", "--data.folder", s3_root.data, *words]


def of_cluster(head: HeadNode, is_one: Callable[[list[str]], bool]) -> list[psutil.Process]:
    """The cluster's processes of such a command line."""
    found = []
    for process in with_token(head.mark):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if is_one(words):
            found.append(process)
    return found


@pytest.fixture(scope="module")
def killed(head: HeadNode, s3_root: OnS3) -> tuple[Heard, list[str]]:
    """A training job whose driver is killed as soon as there is a checkpoint, and the files that it leaves."""
    store, checkpoint = s3_root.storage, "runs/first/checkpoint.safetensors"
    heard = Heard()
    with ThreadPoolExecutor() as threads:
        arguments = [*training(s3_root), "--checkpoint-s", "0"]
        ending = threads.submit(job, head, s3_root, "train", *arguments, heard=heard)
        wait_for(lambda: store.exists(checkpoint) or ending.done(), timeout_s=180)
        assert "Running entrypoint" in heard.log, "its log must come while it runs"
        (driver,) = of_cluster(head, lambda words: words[1:3] == ["-m", "rails_ray.jobs.train"] and "first" in words)
        driver.kill()
        ending.result()
    wait_for(lambda: not of_cluster(head, lambda words: "RayTrainWorker" in " ".join(words)))
    return heard, store.list("runs/first")


@pytest.fixture(scope="module")
def trained(head: HeadNode, s3_root: OnS3, killed: object, tmp_path_factory: pytest.TempPathFactory) -> Heard:
    """The same run in a new job. The checkpoint says by then that training took much longer, which only a job that goes
    on from it can know."""
    store, checkpoint = s3_root.storage, "runs/first/checkpoint.safetensors"
    local = tmp_path_factory.mktemp("checkpoint") / "checkpoint.safetensors"
    local.write_bytes(store.read(checkpoint))
    facts = json.loads(safe_open(local, "pt").metadata()["facts"])
    assert 0 < len(facts["losses"]) < NUM_STEPS
    facts["seconds"] += MARK_S
    store.write(
        checkpoint, safetensors.torch.save(safetensors.torch.load(local.read_bytes()), {"facts": json.dumps(facts)})
    )
    return job(head, s3_root, "train", *training(s3_root))


def test_a_job_that_is_killed_half_way_ends_badly_and_leaves_no_run(killed: tuple[Heard, list[str]]) -> None:
    heard, files = killed
    assert heard.code in (128 + 9, -9), "as the shell tells it that ran the entrypoint, or as Python does"
    assert '{"job"' not in heard.log
    assert files == ["begun.json", "checkpoint.safetensors"]


def test_a_killed_training_job_goes_on_from_its_checkpoint_when_it_is_submitted_again(
    s3_root: OnS3, trained: Heard
) -> None:
    assert trained.code == 0, trained.log
    assert "Traceback" not in trained.log
    run = runs.read(s3_root.storage, "first")
    assert len(run.training["losses"]) == NUM_STEPS
    assert run.training["seconds"] > MARK_S, "it must go on from the checkpoint"
    printed = trained.told
    assert printed.pop("advice").startswith("mixture or dot product: after 15 of 150 steps each, HR@10 on ")
    assert printed == {
        "job": "train",
        "run": "first",
        "hit_rate": run.validation["hit_rate"],
        "mrr": run.validation["mrr"],
        "seen_items": None,
        "seconds": round(run.training["seconds"], 3),
    }


@pytest.fixture(scope="module")
def published(head: HeadNode, s3_root: OnS3, trained: Heard) -> dict[str, Heard]:
    """The jobs that measure the run and make a version of it the current one, by name."""
    encoding = ["--run", "first", "--version", "v1", "--shards", "3", "--part-items", "10"]
    with ThreadPoolExecutor() as threads:
        evaluated = threads.submit(job, head, s3_root, "evaluate", "--run", "first")
        encoded = threads.submit(job, head, s3_root, "encode", *encoding)
    made_current = job(head, s3_root, "publish", "--version", "v1")
    return {"evaluate": evaluated.result(), "encode": encoded.result(), "publish": made_current}


def test_jobs_evaluate_encode_and_publish(s3_root: OnS3, published: dict[str, Heard]) -> None:
    for ended in published.values():
        assert ended.code == 0, ended.log
        assert "Traceback" not in ended.log
    told = {name: ended.told for name, ended in published.items()}
    assert told["encode"] == {"job": "encode", "version": "v1", "num_items": 60, "shard_items": [20, 20, 20]}
    assert told["publish"] == {"job": "publish", "version": "v1", "num_items": 60, "num_parts": 6}
    hit_rate = told["evaluate"].pop("hit_rate")
    assert list(hit_rate) == ["1", "10", "50", "200"]
    assert 0 < hit_rate["1"] <= hit_rate["10"] <= hit_rate["50"] <= hit_rate["200"] == 1
    assert 0 < told["evaluate"].pop("mrr") < 1
    assert told["evaluate"].pop("lists").keys() == {"precision", "recall", "f1", "num_kept", "empty_fraction"}
    assert told["evaluate"].pop("num_queries") > 10
    assert told["evaluate"] == {
        "job": "evaluate",
        "evaluated": "first",
        "split": "test",
        "num_items": 60,
        "cutoff_mass": runs.read(s3_root.storage, "first").cutoff_mass,
        "coverage": None,
        "seen_items": None,
        "searches": None,
    }
    assert versions.current_version(s3_root.storage) == "v1"


def test_a_pipeline_stops_at_its_gate_and_goes_on_from_there_when_it_is_submitted_with_another(
    head: HeadNode, s3_root: OnS3, published: dict[str, Heard]
) -> None:
    store = s3_root.storage
    hit_rate = published["evaluate"].told["hit_rate"]
    trained = store.read("runs/first/training.json")
    refused = job(head, s3_root, "pipeline", *training(s3_root), "--min-hit-rate", "1.0")
    assert refused.code == 1, refused.log
    assert refused.told == {
        "job": "pipeline",
        "error": "version first must pass the gates to be published: hit rate@10 must be at least 1.0000 "
        f"(min_hit_rate), got {hit_rate['10']:.4f}",
    }
    assert "Traceback" not in refused.log
    assert versions.current_version(store) == "v1"
    encoded = manifest.read_encoded(store, "first")

    passed = job(head, s3_root, "pipeline", *training(s3_root))
    assert passed.code == 0, passed.log
    assert "Traceback" not in passed.log
    assert passed.told == {
        "job": "pipeline",
        "run": "first",
        "version": "first",
        "num_items": 60,
        "hit_rate": hit_rate,
        "former_hit_rate": hit_rate,
        "churn": None,
        "seen_items": None,
    }
    assert versions.current_version(store) == "first"
    assert store.read("runs/first/training.json") == trained, "what was done must not be done again"
    assert manifest.read_encoded(store, "first") == encoded
