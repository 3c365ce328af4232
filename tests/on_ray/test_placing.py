import pytest

from rails_ray.on_ray.placing import Placing


@pytest.mark.parametrize(("num_cpus", "num_gpus"), [(1, 0), (0, 0.25), (0.5, 1)])
def test_a_chunk_has_a_cpu_or_a_gpu_or_parts_of_them(num_cpus: float, num_gpus: float) -> None:
    for backend in ("ray_train", "tasks"):
        placing = Placing(backend=backend, num_cpus=num_cpus, num_gpus=num_gpus)  # type: ignore[arg-type]
        assert (placing.num_cpus, placing.num_gpus) == (num_cpus, num_gpus)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backend": "threads"}, "backend must be one of ray_train, tasks, got 'threads'"),
        ({"num_cpus": 0}, "num_cpus and num_gpus must be at least 0, and one above, got 0 and 0"),
        ({"num_cpus": -1, "num_gpus": 2}, "num_cpus and num_gpus must be at least 0, and one above, got -1 and 2"),
        ({"num_gpus": -0.5}, "num_cpus and num_gpus must be at least 0, and one above, got 1 and -0.5"),
    ],
)
def test_places_that_there_are_not(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Placing(**fields)  # type: ignore[arg-type]
