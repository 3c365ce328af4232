"""A shard that is asked directly gets more replicas: Serve's autoscaling sees what does not go through its handles."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ray import serve as ray_serve

from rails_ray.on_ray.serving import app, plan
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import NAME, DeploymentSize, ServeArgs
from rails_ray.serving import client
from support.data_folders import write_text_data
from support.examples import publish_untrained
from support.ports import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.long]

NUM_CLIENTS = 24
PATIENCE_S = 240.0
HASTY = {"upscale_delay_s": 2.0, "metrics_interval_s": 1.0, "look_back_period_s": 2.0}  # Serve waits 30 s by default


def num_running(deployment: str) -> int:
    return ray_serve.status().applications[NAME].deployments[deployment].replica_states.get("RUNNING", 0)


async def asked_until_there_are_more(url: str, texts: list[str]) -> None:
    """Clients whose requests are all different, so that no two travel together."""
    is_over = asyncio.Event()

    async def ask(number: int) -> None:
        async with client.AsyncClient(url, retries=20) as server:
            while not is_over.is_set():
                await server.search([{"text": text} for text in texts], number + 1, method="brute_force")

    clients = [asyncio.create_task(ask(number)) for number in range(NUM_CLIENTS)]
    try:
        async with asyncio.timeout(PATIENCE_S):
            while num_running("Shard000") < 2:
                await asyncio.sleep(0.5)
    finally:
        is_over.set()
    await asyncio.gather(*clients)


def test_direct_calls_count_as_load(tmp_path: Path, no_serve: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "TARGET_ONGOING", 0.05)  # a shard of sixty items is idle most of the time
    usual = plan.deployments

    def hasty(*arguments: Any, **more: Any) -> dict[str, dict[str, Any]]:
        found = usual(*arguments, **more)
        for options in found.values():
            options["autoscaling_config"] |= HASTY
        return found

    monkeypatch.setattr(app, "deployments", hasty)
    publish_untrained(tmp_path, write_text_data(tmp_path / "my-data"))
    args = ServeArgs(storage=str(tmp_path), allow_anonymous=True)
    with served(args, DeploymentSize(max_replicas=2), port=free_port()) as url:
        assert num_running("Shard000") == 1
        asyncio.run(asked_until_there_are_more(url, ["red", "blue hat", "gold ring"] * 20))
        assert len(client.search(url, [{"text": "red"}], 5)["results"][0]["items"]) == 5
