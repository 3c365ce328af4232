"""The command `rails-ray plan`."""

import json
import subprocess
import sys

import pytest

from rails_ray.cli.main import main, parse
from support.command_line import ROOT

# the command


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


EXAMPLE = "--items 100M --components 8 --width 32 --dtype bf16 --qps 2000 --latency-ms 20 --gpu h200"


def test_the_command_prints_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *EXAMPLE.split()]) == 0
    text = printed(capsys)
    for expected in (
        "100,000,000 items, Mixture of Logits 8 x 8 x 32, bf16, brute_force, 1 query a request, on h200",
        "832 B components 512 B, average 64 B, gate 256 B",
        "storage 87.6 GB",
        "3 of 33,333,334 items; memory asks for 1, the latency for 3",
        "27.9 GB of 141 GB, of which 80% may be used",
        "The latency sets the 3 shards, where memory asks for 1; memory bandwidth takes most of a search.",
        "The queries set the 46 replicas of each shard: 138 GPUs in all; requests of 8 queries would take 54.",
        "note: times are the GPU's peaks times the share of them that brute_force reached",
        "next: rails-ray encode --run RUN --shards 3 --dtype bfloat16 next: rails-ray serve",
        "next: rails-ray serve --profile production --keys-file keys --replicas 46 --gpus 1 --print-config",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--items 1M --similarity dot", "dot product 1 x 1 x 64, fp32, brute_force, 1 query a request, on 2 CPU cores"),
        ("--items 1M --similarity dot", "--cpus 2 --shards-apart --print-config"),
        ("--items 1M --similarity dot", "They lie within a factor of 1.8 of all rows"),
        ("--items 4k --gpu h200", "No GPU is needed: as many replicas of 2 CPU cores each meet the demand."),
        ("--items 4k --gpu h200", "Availability sets the 2 replicas of each shard: 2 GPUs in all."),
        ("--items 1M --method average --index ivf", "what index ivf misses depends on the vectors"),
        ("--items 1M --method per_embedding --num-per-embedding 1", "The search then doubles them and starts again."),
        ("--items 1M --dtype int8 --gpu l4", "a version cannot store int8 yet: encode it in fp16 or bf16."),
        ("--items 4k --gpu h100", "by a roofline: the longest of"),
        (
            "--items 700k --components 8 --width 32 --gpu h100",
            "by rows of this shape that were measured on one NVIDIA H100 80GB HBM3",
        ),
        (
            "--items 700k --components 8 --width 32 --gpu h100",
            "note: times are of rows measured on one NVIDIA H100 80GB HBM3 on 2026-11-27, of 674,044 items and "
            "requests of 1 and 32 queries.",
        ),
        ("--items 500M --gpu l4 --latency-ms 1000 --qps 1", "shards, where the latency asks for"),
        ("--items 1M --batch 64 --latency-ms 300 --method average", "64 queries a request"),
        ("--items 1M --latency-ms 30 --method average", "over the budget"),
    ],
)
def test_what_a_plan_says(options: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *options.split()]) == 0
    assert expected in printed(capsys)


def test_a_plan_names_the_gpu_whose_rows_give_its_times() -> None:
    for gpu, expected in (("h100", "NVIDIA H100 80GB HBM3"), ("h200", None), ("none", None)):
        options = f"--items 100k --components 8 --width 32 --latency-ms 1000 --gpu {gpu}"
        found = parse(["plan", *options.split()]).run()
        assert found is not None
        assert found["measured_on"] == expected
        assert {own["measured_on"] for own in found["batches"].values()} == {expected}


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ("--gpu l4", ""),
        ("--gpu l4 --dtype fp16", " --dtype float16"),
        ("--gpu l4 --dtype int8", ""),
        ("--method average --index ivf", " --index ivf --index-of average"),
        ("--similarity dot --method ann --index hnsw", " --index hnsw --index-of average"),
        ("--method per_embedding --index ivf --dtype bf16", " --dtype bfloat16 --index ivf --index-of components"),
        ("--method combined --index hnsw", " --index hnsw --index-of both"),
    ],
)
def test_the_commands_build_what_was_planned(options: str, how: str) -> None:
    told = parse(["plan", "--items", "1M", "--latency-ms", "1000", *options.split()]).run()
    assert told is not None
    assert told["commands"][0] == f"rails-ray encode --run RUN --shards {told['num_shards']}{how}"
    parse(told["commands"][0].split()[1:])


def test_ann_is_planned_with_the_candidates_of_a_request() -> None:
    options = [
        "plan",
        "--items",
        "1M",
        "--similarity",
        "dot",
        "--method",
        "ann",
        "--index",
        "hnsw",
        "--latency-ms",
        "1000",
    ]
    usual, named, more = (
        parse([*options, *words]).run() for words in ([], ["--num-candidates", "10"], ["--num-candidates", "1000"])
    )
    assert usual is not None
    assert named is not None
    assert more is not None
    assert usual["search_ms"] == named["search_ms"] < more["search_ms"]


@pytest.mark.parametrize("options", [EXAMPLE, "--items 10k"])
def test_what_a_plan_returns_is_json_and_its_commands_are_ours(options: str) -> None:
    command = parse(["plan", *options.split()])
    told = command.run()
    assert told is not None
    assert json.loads(json.dumps(told)) == told
    assert told["num_machines"] == told["num_shards"] * told["num_replicas"]
    for line in told["commands"]:
        program, *arguments = line.split()
        assert program == "rails-ray"
        parse(arguments)


def test_the_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "rails-ray plan" in text
    assert "h200|h100|a100-80|l40s|l4|none" in "".join(text.split())


def test_planning_imports_neither_torch_nor_ray_nor_pandas() -> None:
    code = """
import sys
from rails_ray.cli.plan import PlanDeployment
PlanDeployment(items="10k").run()
assert not {"torch", "ray", "pandas", "pyarrow", "scipy"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
