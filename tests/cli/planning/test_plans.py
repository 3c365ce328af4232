"""Plans: what always holds, one by hand, and what cannot be."""

from dataclasses import replace
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.cli.main import EXIT_BAD_ARGUMENT, main, parse
from rails_ray.cli.plan import PlanDeployment
from rails_ray.cli.planning import measured
from rails_ray.cli.planning.machines import GPUS, Cpu, machine
from rails_ray.cli.planning.plans import (
    MEMORY_FRACTION,
    UTILISATION,
    Demand,
    Plan,
    PlannedCorpus,
    around_s,
    batches,
    one_process_busy,
    plan,
)
from rails_ray.cli.planning.searches import METHODS, Search
from rails_ray.cli.planning.shapes import DTYPES, Names, Shape
from support.planned import corpus

# plans

shapes = st.builds(
    Shape,
    num_query_components=st.integers(1, 8),
    num_item_components=st.integers(1, 8),
    width=st.sampled_from([8, 64, 512]),
    dtype=st.sampled_from(sorted(DTYPES)),
)
FOR_ALL_SHAPES = METHODS[:-1]  # ann is for a dot product
search_options = st.builds(
    Search,
    method=st.sampled_from(FOR_ALL_SHAPES),
    num_candidates=st.integers(10, 2000),
    num_per_embedding=st.integers(10, 100),
    batch=st.integers(1, 64),
) | st.builds(
    Search,
    method=st.sampled_from(FOR_ALL_SHAPES[1:]),
    index=st.just("ivf"),
    num_candidates=st.integers(10, 2000),
    num_per_embedding=st.integers(10, 100),
)
corpora = st.builds(
    PlannedCorpus,
    st.integers(10, 10**9),
    shapes,
    search_options,
    st.sampled_from([machine(name) for name in (*GPUS, "none")]),
    st.builds(Names, id_bytes=st.integers(8, 40), title_bytes=st.integers(0, 100)),
)
demands = st.builds(Demand, qps=st.floats(0.1, 1e5), latency_ms=st.floats(8, 1000), availability=st.integers(1, 3))


def planned(own: PlannedCorpus, demand: Demand) -> Plan | None:
    try:
        return plan(own, demand)
    except ValueError:
        return None


@given(corpora, demands)
def test_a_plan_fits_and_keeps_the_latency_with_no_shard_too_many(own: PlannedCorpus, demand: Demand) -> None:
    made = planned(own, demand)
    if made is None:
        return
    assert made.num_shards == max(made.num_shards_by_memory, made.num_shards_by_latency)
    assert made.num_shards * made.shard_items >= own.num_items
    assert made.replica_bytes <= MEMORY_FRACTION * own.machine.memory_bytes
    assert made.request_ms <= demand.latency_ms + 1e-9
    assert made.request_ms == pytest.approx(made.around_ms + made.search_ms)
    assert made.busy_fraction <= UTILISATION + 1e-9
    assert min(made.num_replicas, made.num_routers) >= demand.availability
    assert made.num_replicas * own.search.batch / made.search_ms * 1000 * UTILISATION >= demand.qps * (1 - 1e-9)
    if made.num_shards > 1:
        larger = ceil(own.num_items / (made.num_shards - 1))
        budget_s = (demand.latency_ms - made.around_ms) / 1000
        assert not own.fits(larger) or own.search_s(larger) > budget_s


@given(corpora, demands, st.integers(0, 10**9))
def test_more_items_never_need_fewer_shards(own: PlannedCorpus, demand: Demand, more: int) -> None:
    few, many = planned(own, demand), planned(replace(own, num_items=own.num_items + more), demand)
    if many is not None and few is not None:
        assert many.num_shards >= few.num_shards


@given(corpora, demands, st.floats(1, 1000))
def test_more_queries_never_need_fewer_replicas(own: PlannedCorpus, demand: Demand, times: float) -> None:
    few, many = planned(own, demand), planned(own, replace(demand, qps=demand.qps * times))
    assert (few is None) == (many is None), "shards do not depend on queries"
    if many is not None and few is not None:
        assert many.num_replicas >= few.num_replicas
        assert many.num_routers >= few.num_routers
        assert many.num_shards == few.num_shards


@given(corpora, demands, st.floats(1, 100))
def test_more_time_never_needs_more_shards(own: PlannedCorpus, demand: Demand, times: float) -> None:
    hasty, patient = planned(own, demand), planned(own, replace(demand, latency_ms=demand.latency_ms * times))
    if hasty is not None:
        assert patient is not None
        assert patient.num_shards <= hasty.num_shards


def test_a_plan_by_hand() -> None:
    """100 M items of 832 bytes: a shard of a third is read in 5.39 ms, which an efficiency of 0.5 makes 10.8; the call
    takes 0.7 more."""
    shape = Shape(num_query_components=8, num_item_components=8, width=32, dtype="bf16")
    own = corpus(10**8, shape, "h200")
    made = plan(own, Demand(qps=2000, latency_ms=20, storage_gb_s=1))
    assert (made.num_shards_by_memory, made.num_shards, made.shard_items) == (1, 3, 33_333_334)
    read_s = 33_333_334 * (768 + 8) / 4.8e12
    assert made.search_ms == pytest.approx(1000 * (read_s / 0.5 + 0.0007))
    assert made.stored_bytes == 10**8 * (832 + 44)
    assert made.replica_bytes == 33_333_334 * (832 + 4)
    assert made.host_bytes == 33_333_334 * (832 + 60)
    assert made.load_s == pytest.approx(33_333_334 * 876 / 1e9)
    assert made.num_replicas == made.num_replicas_by_load == ceil(2000 * (read_s / 0.5 + 0.0007) / 0.5)
    assert made.num_machines == 3 * made.num_replicas
    assert made.num_routers == ceil(2000 / (measured.REQUESTS_PER_S.value * 0.5))
    assert made.bound_by == "memory bandwidth"


def test_what_lies_around_a_search_is_what_http_measured_without_the_search() -> None:
    assert 5 < 1000 * around_s() < measured.SEARCHED_OVER_HTTP.figure.value
    emoji = measured.SEARCHED_OVER_HTTP
    own = PlannedCorpus(2 * emoji.num_items, emoji.shape, emoji.search, Cpu(), Names())
    searched_ms = 1000 * own.search_s(emoji.num_items)
    assert 1000 * around_s() + searched_ms == pytest.approx(emoji.figure.value)


def test_batching_is_planned_for_each_size() -> None:
    found = batches(corpus(gpu="l4"), Demand(qps=1000, latency_ms=30), {32, 1})
    assert found == {size: plan(corpus(gpu="l4", batch=size), Demand(qps=1000, latency_ms=30)) for size in (1, 32)}
    assert batches(corpus(), Demand(latency_ms=8), {64}) == {64: None}


def test_a_search_for_more_items_than_there_are_is_one_for_all_of_them() -> None:
    assert PlanDeployment(items="3").corpus().search.k == 3


# what cannot be


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"items": "0"}, "items must be a whole number of at least 1, such as 4000, 10k, 100M or 1.5B, got '0'"),
        ({"gpu": "b200"}, "gpu must be one of h200, h100, a100-80, l40s, l4, or none for CPUs alone, got 'b200'"),
        ({"dtype": "fp8"}, "dtype must be one of fp32, fp16, bf16, int8, got 'fp8'"),
        ({"similarity": "cosine"}, "similarity must be one of mixture, dot, got 'cosine'"),
        ({"similarity": "dot", "components": 8}, "dot must have 1 component on each side, got 1 and 8: leave"),
        ({"method": "two_pass"}, "method must be one of brute_force, .*, ann, got 'two_pass'"),
        ({"method": "ann"}, "method ann must be for a dot product, .*, got 8 and 4: take method average"),
        ({"index": "pq"}, "index must be one of flat, ivf, hnsw, got 'pq'"),
        ({"index": "ivf"}, "index must be flat for method brute_force, .*, got 'ivf': take method average"),
        ({"index": "hnsw", "method": "average", "gpu": "l4"}, "index hnsw must be searched on a CPU, .*, got gpu l4"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"query_components": 0}, "num_query_components must be at least 1, got 0"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"method": "average", "num_candidates": 9}, "must hold at least the k 10 items, got 9: raise num_candidates"),
        ({"qps": 0.0}, "qps must be above 0 and finite, got 0"),
        ({"latency_ms": float("nan")}, "latency_ms must be above 0 and finite, got nan"),
        ({"storage_gb_s": -1.0}, "storage_gb_s must be above 0 and finite, got -1"),
        ({"availability": 0}, "availability must be at least 1, got 0"),
        ({"memory_gb": 0.0}, "memory_gb must be above 0 and finite, got 0"),
        ({"efficiency": 1.5}, "efficiency must be above 0 and at most 1, got 1.5"),
        ({"id_bytes": 0}, "id_bytes must be at least 1, got 0"),
        ({"title_bytes": -1}, "title_bytes must be at least 0, got -1"),
        (
            {"latency_ms": 5.0},
            r"latency_ms must be above the 7\.3 that a request was measured to take besides its search, got 5: no",
        ),
        (
            {"items": "10B", "gpu": "l4"},
            r"latency_ms must be at least \d+\.\d even with shards of 10,000,000 items, got 50: allow more",
        ),
        (
            {"memory_gb": 1e-5},
            r"memory_gb must hold a shard of 1,000 items, as there are 1,000 shards at most, got 1e-05: take",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(
    options: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=message):
        PlanDeployment(**{"items": "1M"} | options).run()
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    items = [] if "items" in options else ["--items", "1M"]
    assert main(["plan", *items, *words]) == EXIT_BAD_ARGUMENT
    assert capsys.readouterr().err.count("\n") == 1


# one process


@given(corpora, demands)
def test_one_process_does_exactly_where_memory_latency_and_load_allow(own: PlannedCorpus, demand: Demand) -> None:
    busy, search_s = one_process_busy(own, demand), own.search_s(own.num_items)
    expected = demand.qps / own.search.batch * (1 / 150.54614357987813 + search_s)
    fits = own.replica_bytes(own.num_items) <= 0.8 * own.machine.memory_bytes
    in_time = around_s() + search_s <= demand.latency_ms / 1000
    if abs(expected - 0.5) > 1e-9 and abs(around_s() + search_s - demand.latency_ms / 1000) > 1e-9:
        assert (busy is not None) == (fits and in_time and expected <= 0.5)
    assert busy is None or busy == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ("--items 4k --qps 50", True),
        ("--items 4k --qps 50 --gpu h200", True),
        ("--items 4k --qps 50 --memory-gb 0.001", False),
        ("--items 4k --qps 100", False),
        ("--items 4k --qps 200 --batch 8", True),
        ("--items 1M --qps 5 --latency-ms 100", False),
        ("--items 100M --similarity dot --qps 1 --latency-ms 20000", False),
    ],
)
def test_a_plan_says_when_one_process_will_do(options: str, is_said: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *options.split()]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("One process will do")]
    assert len(said) == is_said
    for line in said:
        assert "After `encode --shards 1`, `rails-ray serve --single --keys-file keys` serves it" in line
    parse(["serve", "--single", "--keys-file", "keys"])
