import pytest

from rails_ray.on_ray.resources import TrainResources

CPUS, TWO_GPUS = [{"CPU": 4.0}], [{"CPU": 4.0, "GPU": 2.0}]
TWO_NODES = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 6.0, "GPU": 1.0}, {}]


def of_all(nodes: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU")}


@pytest.mark.parametrize(
    ("placing", "nodes", "use_gpu", "num_gpus", "room"),
    [
        (TrainResources(), CPUS, None, 0, 4),
        (TrainResources(num_cpus=2), CPUS, None, 0, 2),
        (TrainResources(num_cpus=0.5), CPUS, None, 0, 8),
        (TrainResources(num_cpus=3), CPUS, None, 0, 1),
        (TrainResources(), TWO_GPUS, None, 1, 2),
        (TrainResources(), TWO_GPUS, False, 0, 4),
        (TrainResources(num_gpus=0.25, num_cpus=0.5), TWO_GPUS, None, 0.25, 8),
        (TrainResources(num_gpus=0.4), TWO_GPUS, None, 0.4, 4),
        (TrainResources(num_gpus=0.6), TWO_GPUS, True, 0.6, 2),  # two of them do not fit on one GPU
        (TrainResources(num_gpus=2), TWO_GPUS, None, 2, 1),
        (TrainResources(num_gpus=1), CPUS, None, 0, 4),
        (TrainResources(num_gpus=0), TWO_GPUS, True, 0, 4),
        (TrainResources(num_cpus=3), TWO_NODES, False, 0, 3),
        (TrainResources(num_cpus=5), TWO_NODES, None, 1, 1),
    ],
)
def test_room(
    placing: TrainResources, nodes: list[dict[str, float]], use_gpu: bool | None, num_gpus: float, room: int
) -> None:
    found = placing.on(of_all(nodes), use_gpu)
    assert found.num_gpus == num_gpus
    assert found.room(nodes) == room


@pytest.mark.parametrize(
    ("placing", "nodes", "came"),
    [
        (TrainResources(num_cpus=5), CPUS, "5 CPUs and 0 GPUs that a chunk reserves, got 4 and 0"),
        (TrainResources(num_gpus=1), CPUS, "1 CPUs and 1 GPUs that a chunk reserves, got 4 and 0"),
        (TrainResources(), CPUS, "1 CPUs and 1 GPUs that a chunk reserves, got 4 and 0"),
        (TrainResources(num_gpus=3), TWO_GPUS, "1 CPUs and 3 GPUs that a chunk reserves, got 4 and 2"),
        (
            TrainResources(num_gpus=2),
            TWO_NODES,
            "1 CPUs and 2 GPUs that a chunk reserves, got 0 and 0, 4 and 1, 6 and 1",
        ),
    ],
)
def test_no_room_for_a_single_chunk(placing: TrainResources, nodes: list[dict[str, float]], came: str) -> None:
    asked = placing.on(of_all(nodes), True if placing.num_cpus < 5 else None)
    with pytest.raises(
        ValueError, match=f"a node of the cluster must have the {came}: set --chunks.num-cpus and --chunks.num-gp"
    ):
        asked.room(nodes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backend": "threads"}, "backend must be one of ray_train, tasks, got 'threads'"),
        ({"num_cpus": 0}, "num_cpus must be above 0, got 0"),
        ({"num_gpus": -0.5}, "num_gpus must be at least 0, got -0.5"),
        ({"num_gpus": 1.5}, "num_gpus must be at most 1, or whole, got 1.5"),
    ],
)
def test_places_that_there_are_not(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainResources(**fields)
