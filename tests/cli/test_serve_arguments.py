"""What `rails-ray serve` makes of its arguments: the config that it prints, the ranker, the cut-off."""

import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rails_ray.cli import serving, until_stopped
from rails_ray.cli.main import EXIT_BAD_ARGUMENT, main
from rails_ray.on_ray.serving import plan
from rails_ray.schema.deployment import RankerArgs
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.examples import encode


def test_the_config_that_is_printed_is_of_the_versions_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Storage(str(tmp_path))
    versions.publish(store, encode(store, "v1", [3, 2, 2]), "2026-01-01T00:00:00Z")
    monkeypatch.chdir(tmp_path)
    options = [
        "--cutoff",
        "coverage",
        ".9",
        "--keys-file",
        "keys",
        "--replicas",
        "2",
        "--max-replicas",
        "4",
        "--gpus",
        "0.25",
        "--nodes",
        "2",
        "--router-gpus",
        "0.1",
        "--port",
        "9000",
    ]
    arguments = ["serve", "--print-config", "--profile", "production", "--storage", str(tmp_path), *options]
    assert main(arguments) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["http_options"] == {"host": "0.0.0.0", "port": 9000, "request_timeout_s": 30}
    (application,) = config["applications"]
    assert application["args"] == {
        "storage": str(tmp_path),
        "version": "v1",
        "keys_file": str(tmp_path / "keys"),
        "cutoff": {"coverage": 0.9},
    }
    deployments = application["deployments"]
    assert [deployment["name"] for deployment in deployments] == ["Router", "Shard000", "Shard001", "Shard002"]
    assert {deployment["autoscaling_config"]["max_replicas"] for deployment in deployments} == {4}
    assert {deployment["max_replicas_per_node"] for deployment in deployments} == {1}
    reserved = [deployment["ray_actor_options"].get("num_gpus") for deployment in deployments]
    assert reserved == [0.1, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ranker.timeout-s", "0"], "--ranker.timeout-s must be greater than 0, got 0.0"),
        (["--ranker.timeout-s", "60"], "--ranker.timeout-s must be less than the 30 s of a whole request, got 60"),
        (["--ranker.max-in-flight", "0"], "--ranker.max-in-flight must be greater than or equal to 1, got 0"),
    ],
)
def test_a_ranker_that_cannot_be_deployed(
    arguments: list[str], told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = Storage(str(tmp_path))
    versions.publish(store, encode(store, "v1", [3, 2]), "2026-01-01T00:00:00Z")
    serve = ["serve", "--print-config", "--allow-anonymous", "--storage", str(tmp_path), "--ranker.path", "my:rank"]
    assert main([*serve, *arguments]) == EXIT_BAD_ARGUMENT
    assert f"rails-ray: {told}\n" in capfd.readouterr().err


def test_the_config_that_is_printed_has_the_ranker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Storage(str(tmp_path))
    versions.publish(store, encode(store, "v1", [3]), "2026-01-01T00:00:00Z")
    words = """--ranker.path my_rankers:Careful --ranker.replicas 4 --ranker.cpus 2 --ranker.gpus 0.25
        --ranker.timeout-s 3 --ranker.concurrency 2 --ranker.max-in-flight 16 --gpus 1"""
    arguments = ["serve", "--print-config", "--allow-anonymous", "--storage", str(tmp_path), *words.split()]
    assert main(arguments) == 0
    (application,) = yaml.safe_load(capsys.readouterr().out)["applications"]
    own = {"path": "my_rankers:Careful", "timeout_s": 3, "concurrency": 2, "max_in_flight": 16}
    assert application["args"]["ranker"] == own
    assert application["deployments"][-1] == {
        "name": "Ranker",
        "num_replicas": 4,
        "max_ongoing_requests": 2,
        "max_queued_requests": 16,
        "ray_actor_options": {"num_cpus": 2, "num_gpus": 0.25},
    }


def serving_with(**fields: Any) -> serving.Serve:
    return serving.Serve(storage="s", ranker=serving.RankerOptions(**fields))


def test_the_versions_own_ranker_is_deployed_unless_another_is_named() -> None:
    own = RankerArgs(path="made:With", folder="/made/with")
    assert serving_with()._ranker(None) is None
    assert serving_with(timeout_s=3)._ranker(own) == replace(own, timeout_s=3)
    assert serving_with(folder="/moved")._ranker(own) == replace(own, folder="/moved")
    assert serving_with(path="an:Other")._ranker(own) == RankerArgs(path="an:Other")  # which reads no folder


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"folder": "/f"}, "--ranker.folder must be given with --ranker.path, got /f alone"),
        ({"path": "a:b", "concurrency": 0}, "--ranker.concurrency must be greater than or equal to 1, got 0"),
    ],
)
def test_a_ranker_that_is_refused_when_it_is_named(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        serving_with(**fields)._ranker(None)


@pytest.mark.parametrize(("profile", "num_replicas"), [("local", 1), ("production", 2)])
def test_a_printed_config_of_production_can_lose_a_replica(
    profile: str, num_replicas: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Storage(str(tmp_path))
    versions.publish(store, encode(store, "v1", [3, 2]), "2026-01-01T00:00:00Z")
    arguments = ["serve", "--print-config", "--allow-anonymous", "--profile", profile, "--storage", str(tmp_path)]
    assert main(arguments) == 0
    (application,) = yaml.safe_load(capsys.readouterr().out)["applications"]
    assert {deployment["num_replicas"] for deployment in application["deployments"]} == {num_replicas}


def test_a_printed_config_may_have_the_shards_in_the_routers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Storage(str(tmp_path))
    versions.publish(store, encode(store, "v1", [3, 2]), "2026-01-01T00:00:00Z")
    arguments = ["serve", "--print-config", "--allow-anonymous", "--storage", str(tmp_path), "--shards-in-routers"]
    assert main(arguments) == 0
    (application,) = yaml.safe_load(capsys.readouterr().out)["applications"]
    assert application["args"]["shards_in_routers"] is True
    assert [deployment["name"] for deployment in application["deployments"]] == ["Router"]


@pytest.mark.parametrize(
    ("options", "most_bytes", "are_in_routers"),
    [
        ([], plan.SMALL_BYTES, True),
        (["--profile", "production", "--replicas", "3", "--cpus", "2"], plan.SMALL_BYTES, True),
        (["--shards-apart"], plan.SMALL_BYTES, False),
        (["--no-shards-in-routers"], plan.SMALL_BYTES, False),
        (["--follow"], plan.SMALL_BYTES, False),
        (["--max-replicas", "4"], plan.SMALL_BYTES, False),
        (["--gpus", "0.5"], plan.SMALL_BYTES, False),
        (["--router-gpus", "0.1"], plan.SMALL_BYTES, False),
        ([], 100, False),
        (["--follow", "--shards-in-routers"], 100, True),
    ],
)
def test_routers_hold_the_shards_of_a_small_version(
    options: list[str],
    most_bytes: int,
    are_in_routers: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Storage(str(tmp_path))
    versions.publish(store, encode(store, "v1", [3, 2]), "2026-01-01T00:00:00Z")
    monkeypatch.setattr(plan, "SMALL_BYTES", most_bytes)
    arguments = ["serve", "--print-config", "--allow-anonymous", "--storage", str(tmp_path), *options]
    assert main(arguments) == 0
    (application,) = yaml.safe_load(capsys.readouterr().out)["applications"]
    assert application["args"].get("shards_in_routers", False) is are_in_routers
    names = [deployment["name"] for deployment in application["deployments"]]
    assert names == ["Router"] + ["Shard000", "Shard001"] * (not are_in_routers)


def test_shards_are_in_one_place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["serve", "--allow-anonymous", "--storage", str(tmp_path), "--shards-apart", "--shards-in-routers"]
    with pytest.raises(SystemExit):
        main(arguments)
    assert "--shards-apart and --shards-in-routers are not allowed together" in capfd.readouterr().err


PORTS = ("--haproxy.stats-port", "--haproxy.metrics-port", "--haproxy.fallback-port")


def test_the_ports_of_production_can_be_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Storage(str(tmp_path))
    versions.publish(store, encode(store, "v1", [3, 2]), "2026-01-01T00:00:00Z")
    monkeypatch.setenv("RAY_SERVE_HAPROXY_METRICS_PORT", "7002")
    arguments = ["serve", "--print-config", "--allow-anonymous", "--profile", "production", "--storage", str(tmp_path)]
    assert main([*arguments, PORTS[0], "7001"]) == 0
    text = capsys.readouterr().out
    for told in ("STATS_PORT=7001\n", "METRICS_PORT=7002\n", "FALLBACK_PROXY_HTTP_PORT=8500\n", " 7001 and 7002, on "):
        assert told in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([PORTS[0], "0"], f"{PORTS[0]} must be from 1 to 65535, got 0"),
        ([PORTS[1], "65536"], f"{PORTS[1]} must be from 1 to 65535, got 65536"),
        (
            [PORTS[2], "30500"],
            f"{PORTS[2]} must be outside 30000-30999, where routers listen, got 30500: choose another {PORTS[2]}",
        ),
        (
            ["--port", "30000"],
            "--port must be outside 30000-30999, where routers listen, got 30000: choose another --port",
        ),
        (
            ["--port", "8404"],
            f"--port and {PORTS[0]} must be different ports, got 8404 for each: choose another for one of them",
        ),
        (
            [PORTS[0], "7001", PORTS[1], "7001"],
            f"{PORTS[0]} and {PORTS[1]} must be different ports, got 7001 for each: choose another for one of them",
        ),
        (
            [PORTS[0], "7001", "--profile", "local"],
            "--haproxy options must be given with --profile production, got --profile local: leave them out",
        ),
    ],
)
def test_ports_that_cannot_be(arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]) -> None:
    serve = ["serve", "--print-config", "--allow-anonymous", "--profile", "production", *arguments]
    assert main(serve) == EXIT_BAD_ARGUMENT
    assert f"rails-ray: {told}\n" in capfd.readouterr().err


def test_the_production_profile_is_not_promised_on_a_cluster_that_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert main(["serve", "--allow-anonymous", "--profile", "production"]) == EXIT_BAD_ARGUMENT
    assert "profile production must be set on all machines before Ray starts" in capfd.readouterr().err


def test_a_cut_off_by_number_is_an_integer_as_the_server_wants_it() -> None:
    assert serving.named_cutoff(("top_k", 5.0)) == {"top_k": 5}
    assert isinstance(serving.named_cutoff(("top_k", 5.0))["top_k"], int)
    assert serving.cutoff_of(("top_k", 5.0)).top_k == 5
    assert serving.named_cutoff(("mass", 0.5)) == {"mass": 0.5}
    with pytest.raises(ValueError, match=r"--cutoff top_k must be an integer, got 2\.5"):
        serving.cutoff_of(("top_k", 2.5))


def test_a_signal_that_comes_while_an_object_is_finalized_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    lost = list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    try:
        check_stop = until_stopped.on_signals()
        check_stop()
        finalized = Finalized()
        del finalized  # its last reference
        assert [failure.exc_type for failure in lost] == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            check_stop()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
