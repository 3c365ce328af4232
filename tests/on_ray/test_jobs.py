"""Jobs on a cluster of their own: submitted, followed, stopped, killed, submitted again; the whole way on S3."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
from ray.job_submission import JobSubmissionClient
from safetensors import safe_open

from examples import write_text_data
from head_node import HeadNode, free_ports, head_node
from processes import wait_for, with_token
from rails_ray import on_ray
from rails_ray.errors import ConflictError, UnavailableError
from rails_ray.storage import manifest, runs, versions
from rails_ray.storage.filesystem import Storage
from s3_server import SECRET, new_bucket, use_s3

ROOT = Path(__file__).parents[2]
JOBS = ("train", "encode", "publish", "evaluate", "pipeline")
NUM_STEPS = 150
MARK_S = 1e6


def last_line(text: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(text.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def head() -> Iterator[HeadNode]:
    with head_node() as started:
        yield started


@dataclass
class Heard:
    """What a job's submitter hears."""

    code: int | None = None
    pieces: list[str] = field(default_factory=list)

    @property
    def log(self) -> str:
        return "".join(self.pieces)


def submit(head: HeadNode, *entrypoint: str, heard: Heard | None = None, **options: Any) -> Heard:
    heard = heard or Heard()
    heard.code = on_ray.submit(entrypoint, address=head.address, **{"on_log": heard.pieces.append, **options})
    return heard


WAITING_JOB = """
import os, sys, time
from pathlib import Path

folder = Path(os.environ["FOLDER"])
with (folder / "started").open("a") as started:
    started.write("once\\n")
for number in range(25):
    print("line", number)
print(sys.argv[1:])
deadline = time.monotonic() + 60
while not (folder / "heard").exists():
    if time.monotonic() > deadline:
        sys.exit("nobody heard what was printed while the job ran")
    time.sleep(0.05)  # a file of another process gives no event to wait for
print("last line", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.cluster
def test_a_submission_id_stands_for_one_job_that_any_number_of_submitters_follow(
    head: HeadNode, tmp_path: Path
) -> None:
    folder, working_dir = tmp_path / "folder", tmp_path / "working_dir"
    folder.mkdir()
    working_dir.mkdir()
    (working_dir / "waiting.py").write_text(WAITING_JOB)
    entrypoint = ["python", "waiting.py", "two words", "it's", "$HOME; exit 0"]
    options = {
        "submission_id": "waiting",
        "working_dir": str(working_dir),
        "environment": {"FOLDER": str(folder)},
        "num_cpus": 1,
    }
    second = Heard()

    def answer(text: str) -> None:
        second.pieces.append(text)
        if "two words" in text:
            (folder / "heard").touch()

    with ThreadPoolExecutor() as threads:
        following = threads.submit(submit, head, *entrypoint, **options)
        wait_for((folder / "started").exists)
        also_following = threads.submit(submit, head, *entrypoint, heard=second, **options | {"on_log": answer})
        with pytest.raises(
            ConflictError,
            match="submission_id must be new, or of a job of this entrypoint, got 'waiting', which is of "
            r"'python waiting\.py \S+two words\S+ ",
        ):
            submit(head, "python", "other.py", **options)
        first = following.result()
        also_following.result()
    again = submit(head, *entrypoint, **options)
    assert first.code == second.code == again.code == 7
    assert (folder / "started").read_text() == "once\n"
    assert first.log == second.log == again.log == JobSubmissionClient(head.address).get_job_logs("waiting")
    assert len(second.pieces) > 1, "the job waited until a part of its log was heard"
    *_, arguments, last = first.log.splitlines()
    assert arguments == str(entrypoint[2:]), "words must come as they were given"
    assert last == "last line"
    assert [line for line in first.log.splitlines() if line.startswith("line")] == [
        f"line {number}" for number in range(25)
    ]
    assert JobSubmissionClient(head.address).get_job_info("waiting").runtime_env["env_vars"]["FOLDER"] == str(folder)


@pytest.mark.cluster
def test_jobs_whose_arguments_cannot_be_and_one_that_is_stopped(head: HeadNode) -> None:
    """Side by side, as each of them is mostly waited for."""

    def stop(text: str) -> None:
        if "Running entrypoint" in text:
            JobSubmissionClient(head.address).stop_job("stopped")

    with ThreadPoolExecutor() as threads:
        unknown = threads.submit(
            submit, head, "python", "-m", "jobs.train", "--training.speed", "9", working_dir=str(ROOT)
        )
        relative = threads.submit(submit, head, "python", "-m", "jobs.publish", "--version", "v", working_dir=str(ROOT))
        stopped = threads.submit(submit, head, "sleep", "600", submission_id="stopped", working_dir=None, on_log=stop)
    assert unknown.result().code == relative.result().code == 2
    assert "--training.speed" in unknown.result().log
    assert last_line(unknown.result().log) == {
        "job": "train",
        "error": "the arguments must be those of the command",
    }
    assert last_line(relative.result().log) == {
        "job": "publish",
        "error": "a job's --storage must be s3://bucket/prefix, or an absolute folder that all machines of the cluster "
        "share, got 'rails-ray-data'",
    }
    assert "Traceback" not in unknown.result().log + relative.result().log
    with pytest.raises(UnavailableError, match=r"^job stopped must run to its end, got STOPPED: \S"):
        stopped.result()


@pytest.mark.cluster
def test_the_address_is_that_of_the_argument(head: HeadNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's client takes these variables for more important than what it is given."""
    monkeypatch.setenv("RAY_ADDRESS", head.address)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", head.address)
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(UnavailableError, match=address):
        on_ray.submit(["true"], address=address, working_dir=None)


@pytest.mark.cluster
def test_a_wrong_token(head: HeadNode) -> None:
    """In a process of its own: Ray reads the token once."""
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from rails_ray.errors import AccessError; from rails_ray.on_ray import submit\n"
            "try: submit(['true'], address=sys.argv[1], working_dir=None, submission_id='x')\n"
            "except AccessError as error: print(error)",
            head.address,
        ],
        env=os.environ | {"RAY_AUTH_TOKEN": "0" * 64},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout.count("\n") == 1, told.stderr
    assert told.stdout.rstrip() == (
        f"a cluster must take job x at {head.address}, got a refusal of the token: set RAY_AUTH_TOKEN to the cluster's"
    )
    assert os.environ["RAY_AUTH_TOKEN"] not in told.stdout + told.stderr


@pytest.mark.cluster
def test_a_working_dir_that_cannot_be_sent(head: HeadNode, tmp_path: Path) -> None:
    nowhere, file, large = (str(tmp_path / name) for name in ("nowhere", "file", "large"))
    Path(file).touch()
    for path in (nowhere, file):
        with pytest.raises(ValueError, match=f"^working_dir must be a folder, got '{path}'$"):
            submit(head, "true", working_dir=path)
    Path(large).mkdir()
    Path(large, "weights").write_bytes(os.urandom(101 * 2**20))  # of random bytes a packed folder is no smaller
    with pytest.raises(
        ValueError,
        match=f"^working_dir must fit, packed, into what a cluster takes, got '{large}': .*[0-9].*: "
        r"name what the job does not need in \.rayignore$",
    ):
        submit(head, "true", working_dir=large)
    Path(large, "weights").unlink()  # pytest keeps the folders of three sessions


# ---- the whole way, on S3, as jobs on a cluster go it


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
        *("python", "-m", f"jobs.{name}", *arguments, "--storage", s3_root.root),
        heard=heard,
        working_dir=str(ROOT),
        environment=s3_root.environment,
    )
    assert SECRET not in ended.log
    return ended


def training(s3_root: OnS3) -> list[str]:
    """Arguments of a training that takes a moment, of the run "first"."""
    sizes = {
        "encoder.width": 8,
        "encoder.hidden": 8,
        "encoder.num-buckets": 500,
        "components.width": 6,
        "components.gate-hidden": 5,
        "similarity.num-query-components": 2,
        "similarity.num-item-components": 2,
        "similarity.gate-hidden": 5,
        "training.batch-size": 16,
        "training.num-items": 16,
        "training.learning-rate": 1e-2,
        "training.num-steps": NUM_STEPS,
    }
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    return ["text-mol", "--run", "first", "--workers", "1", "--data.folder", s3_root.data, *words]


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
        (driver,) = of_cluster(head, lambda words: words[1:3] == ["-m", "jobs.train"] and "first" in words)
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


@pytest.mark.cluster
def test_a_job_that_is_killed_half_way_ends_badly_and_leaves_no_run(killed: tuple[Heard, list[str]]) -> None:
    heard, files = killed
    assert heard.code in (128 + 9, -9), "as the shell tells it that ran the entrypoint, or as Python does"
    assert '{"job"' not in heard.log
    assert files == ["begun.json", "checkpoint.safetensors"]


@pytest.mark.cluster
def test_a_killed_training_job_goes_on_from_its_checkpoint_when_it_is_submitted_again(
    s3_root: OnS3, trained: Heard
) -> None:
    assert trained.code == 0, trained.log
    assert "Traceback" not in trained.log
    run = runs.read(s3_root.storage, "first")
    assert len(run.training["losses"]) == NUM_STEPS
    assert run.training["seconds"] > MARK_S, "it must go on from the checkpoint"
    assert last_line(trained.log) == {
        "job": "train",
        "run": "first",
        "hit_rate": run.validation["hit_rate"],
        "mrr": run.validation["mrr"],
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


@pytest.mark.cluster
def test_jobs_evaluate_encode_and_publish(s3_root: OnS3, published: dict[str, Heard]) -> None:
    for ended in published.values():
        assert ended.code == 0, ended.log
        assert "Traceback" not in ended.log
    told = {name: last_line(ended.log) for name, ended in published.items()}
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
    }
    assert versions.current_version(s3_root.storage) == "v1"


@pytest.mark.cluster
def test_a_pipeline_stops_at_its_gate_and_goes_on_from_there_when_it_is_submitted_with_another(
    head: HeadNode, s3_root: OnS3, published: dict[str, Heard]
) -> None:
    store = s3_root.storage
    hit_rate = last_line(published["evaluate"].log)["hit_rate"]
    trained = store.read("runs/first/training.json")
    refused = job(head, s3_root, "pipeline", *training(s3_root), "--min-hit-rate", "1.0")
    assert refused.code == 1, refused.log
    assert last_line(refused.log) == {
        "job": "pipeline",
        "error": "version first must pass the gates to be published: hit rate@10 must be at least 1.0000, the floor, "
        f"got {hit_rate['10']:.4f}",
    }
    assert "Traceback" not in refused.log
    assert versions.current_version(store) == "v1"
    encoded = manifest.read_encoded(store, "first")

    passed = job(head, s3_root, "pipeline", *training(s3_root))
    assert passed.code == 0, passed.log
    assert "Traceback" not in passed.log
    assert last_line(passed.log) == {
        "job": "pipeline",
        "run": "first",
        "version": "first",
        "num_items": 60,
        "hit_rate": hit_rate,
        "former_hit_rate": hit_rate,
    }
    assert versions.current_version(store) == "first"
    assert store.read("runs/first/training.json") == trained, "what was done must not be done again"
    assert manifest.read_encoded(store, "first") == encoded
