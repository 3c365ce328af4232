"""On three nodes: training, encoding and serving, versions that change, and nodes that are lost and come back."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from jobs.benches import chaos_faults
from jobs.benches.nodes import ServedOnNodes
from jobs.benches.nodes_cluster import SeveralNodes, several_nodes
from rails_ray.families import config, encoding
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.dual_encoder.negatives import CrossDeviceNegatives
from rails_ray.families.encoding import EncodeOptions
from rails_ray.families.in_process import InProcess
from rails_ray.on_ray.environment import ENVIRONMENT
from rails_ray.on_ray.publishing import publish
from rails_ray.storage import runs, versions
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data
from support.examples import small_config, write_untrained_run
from support.loss_curves import curve_of
from support.ports import free_port
from support.s3_server import new_bucket, s3_server_process, use_s3

pytestmark = [pytest.mark.cluster, pytest.mark.long]

TEXTS = ["red", "blue hat", "gold ring"]
NUM_SHARDS = 4
ALL_ITEMS = 100  # more than there are
TRAIN = """
import sys
from rails_ray import on_ray
from rails_ray.families.config import from_json
from rails_ray.on_ray.cluster import cluster
with cluster():
    on_ray.train(from_json(sys.argv[1].encode()), sys.argv[2], run="r", num_workers=2)
"""
LOOK = """
import sys
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.nodes import check_shared, rooms
with cluster():
    print([sorted(rooms(*own)) for own in ((0.1, 0), (1.5, 0), (0.1, 1))])
    for paths in sys.argv[1:]:
        storage, *others = paths.split()
        try:
            check_shared(storage, others)
            print("found")
        except ValueError as error:
            print(error)
"""
# So that a lost node is missed after three seconds, and not after Ray's fifteen.
IMPATIENT = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}


@dataclass(frozen=True)
class OnNodes:
    """A cluster of three nodes, and an S3 server that they reach."""

    nodes: SeveralNodes
    root: str
    run_config: RunConfig

    @property
    def storage(self) -> Storage:
        return Storage(self.root)

    def command(self, *words: str) -> str:
        """Run a command, which must end well, and return what it prints."""
        done = self.nodes.run(sys.executable, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def nodes_of(self, what: str, is_one: Callable[[dict[str, Any]], bool]) -> set[str]:
        """Ids of the nodes that had such actors or tasks."""
        return {own["node_id"] for own in self.nodes.state(what) if is_one(own)}


@pytest.fixture(scope="module")
def on_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnNodes]:
    with ExitStack() as stack:
        variables = stack.enter_context(pytest.MonkeyPatch.context())

        def environment(here: str) -> dict[str, str]:
            url = stack.enter_context(s3_server_process(here))
            use_s3(variables, url)
            variables.setenv("NO_PROXY", "*")
            of_s3 = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
            return {**of_s3, **ENVIRONMENT, **IMPATIENT}

        nodes = stack.enter_context(several_nodes(environment=environment))
        bucket = f"s3://{new_bucket(os.environ['AWS_ENDPOINT_URL'])}"
        data = Storage(f"{bucket}/data")
        for table in write_text_data(tmp_path_factory.mktemp("data")).iterdir():
            data.write(table.name, table.read_bytes())
        small = replace(small_config(), data=DataConfig(folder=str(data)))
        yield OnNodes(nodes, f"{bucket}/storage", small.with_family(negatives=CrossDeviceNegatives()))


def encoded_here(on_nodes: OnNodes, run: str, version: str) -> list[str]:
    """The digests of the parts that one process writes."""
    options = EncodeOptions(version=version, num_shards=NUM_SHARDS, part_items=4)
    return [part.sha256 for part in encoding.encode(InProcess(), on_nodes.root, run, options).parts]


@pytest.fixture(scope="module")
def trained(on_nodes: OnNodes) -> OnNodes:
    on_nodes.command("-c", TRAIN, config.to_json(on_nodes.run_config).decode(), on_nodes.root)
    return on_nodes


def test_workers_on_two_nodes_train_as_one_process_does(trained: OnNodes) -> None:
    """With the items of both workers as negatives for each query, and their gradients."""
    assert len(trained.nodes_of("actors", lambda own: "RayTrainWorker" in own["class_name"])) == 2
    losses = runs.read(trained.storage, "r").training["losses"]
    assert losses == pytest.approx(curve_of(trained.run_config, trained.storage), rel=1e-3, abs=1e-4)


@pytest.fixture(scope="module")
def published(trained: OnNodes) -> OnNodes:
    """v1, encoded on all nodes and current, and v2, which shares nothing with it."""
    sizes = ["--shards", str(NUM_SHARDS), "--workers", "3", "--part-items", "4"]
    encode = ["encode", "--run", "r", "--version", "v1", "--storage", trained.root]
    trained.command("-m", "rails_ray.cli", *encode, *sizes)
    write_untrained_run(trained.storage, "other", replace(trained.run_config, seed=7))
    encoded_here(trained, "other", "v2")
    for version in ("v2", "v1"):
        publish(trained.root, version)
    return trained


def test_all_nodes_write_the_bytes_that_one_process_writes(published: OnNodes) -> None:
    writers = published.nodes_of("tasks", lambda own: own["name"].startswith("MapBatches"))
    assert writers == set(published.nodes.alive().values())
    parts = [part.sha256 for part in versions.read_manifest(published.storage, "v1").parts]
    assert parts == encoded_here(published, "r", "alone")


def test_what_nodes_hold_and_find(on_nodes: OnNodes) -> None:
    nodes = on_nodes.nodes
    for number in (0, 1, 2):
        nodes.run("mkdir", "-p", "/tmp/same-name", at=number)
    nodes.run("mkdir", "-p", "/tmp/alone")
    asked = ["/tmp/same-name", "s3://bucket /tmp/alone", "/var/tmp", "s3://bucket /nowhere"]
    counted, *found = on_nodes.command("-c", LOOK, *asked).splitlines()
    assert counted == "[[10, 10, 10], [0, 0, 0], [0, 0, 0]]"
    rest = (
        f"must be the same on all nodes of the cluster, got none on node {nodes.nodes[1].address}: mount it there, or "
    )
    if nodes.is_apart:  # folders of the same name are not the same
        assert found[:2] == [
            f"{path} {rest}take s3://, az:// or gs://bucket/prefix" for path in ("/tmp/same-name", "/tmp/alone")
        ]
    assert found[2:] == ["found"] * 2


def test_a_command_refuses_a_folder_that_other_nodes_lack(on_nodes: OnNodes) -> None:
    if not on_nodes.nodes.is_apart:
        pytest.skip("needs nodes with folders of their own: the right to make network namespaces")
    on_nodes.nodes.run("mkdir", "-p", "/tmp/alone")
    evaluate = ["-m", "rails_ray.cli", "evaluate", "--run", "r", "--storage", "/tmp/alone"]
    refused = on_nodes.nodes.run(sys.executable, *evaluate)
    assert refused.returncode == 2
    assert "rails-ray: /tmp/alone must be the same on all nodes of the cluster, got none on node" in refused.stderr


@pytest.fixture(scope="module")
def served(published: OnNodes) -> ServedOnNodes:
    made = ServedOnNodes(published.nodes, published.root, TEXTS, free_port())
    made.deploy(NUM_SHARDS)
    return made


def test_replicas_of_a_deployment_are_on_different_nodes(served: ServedOnNodes) -> None:
    assert set(served.places()) == {"Router", *(f"Shard{number:03d}" for number in range(NUM_SHARDS))}
    assert len({node for nodes in served.places().values() for node in nodes}) == 3


async def lists_all(served: ServedOnNodes) -> None:
    """A list of all items is that of the version, so that none is lost."""
    async with served.at(0, ALL_ITEMS).clients(1) as clients:
        await clients.answers(2 * len(TEXTS))
    assert not clients.wrong


def test_versions_change_while_clients_ask(served: ServedOnNodes) -> None:
    first = served.at(0)

    async def add() -> str:
        more = pa.table({"item_id": ["new-1", "new-2"], "input": ["red ring", "blue crown"]})
        return await asyncio.to_thread(served.add, more)

    async def scenario() -> None:
        async with first.clients(2) as clients:
            await clients.answers(10)
            await chaos_faults.served(first, await add())
            await clients.answers(10)
            await lists_all(served)
        outcome = clients.outcome(0)
        assert (outcome["failed"], outcome["refused"], outcome["wrong"]) == (0, 0, 0)
        outcome = await chaos_faults.swapped(first, "v2", 2, 2)
        assert (outcome["failed"], outcome["refused"], outcome["wrong"]) == (0, 0, 0)
        await lists_all(served)

    asyncio.run(scenario())


def test_nodes_are_lost_while_clients_ask_and_come_back(served: ServedOnNodes) -> None:
    """One of the two others, and once that is back, the other one, whose replicas only it has room for."""
    for number in (1, 2):
        node = served.nodes.nodes[number]
        outcome = asyncio.run(served.lost(number, 2, node.kill, seconds=1))
        assert (outcome["wrong"], outcome["its_wrong"]) == (0, 0)
        assert outcome["failed"] + outcome["refused"] < 0.5 * outcome["requests"]
        asyncio.run(lists_all(served))
        served.nodes.start(node)
