import numpy as np
import pytest

from rails_ray.data.epochs import Epochs

SEEDS = [[3], [3, 0]]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("num", "size"), [(5, 2), (5, 5), (5, 9), (1, 1), (4, 1)])
def test_an_epoch_is_its_permutation_cut_into_batches(seed: list[int], num: int, size: int) -> None:
    epochs, num_batches = Epochs(seed, num), -(-num // size)
    for epoch in range(3):
        batches = [epochs.cut(epoch * num_batches + place, size) for place in range(num_batches)]
        assert [len(batch) for batch in batches[:-1]] == [size] * (num_batches - 1)
        drawn = np.random.default_rng([*seed, epoch]).permutation(num)
        assert np.concatenate(batches).tolist() == drawn.tolist()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("num", "size"), [(5, 2), (5, 5), (5, 12), (1, 3), (4, 1)])
def test_batches_of_one_size_go_through_one_epoch_after_the_other(seed: list[int], num: int, size: int) -> None:
    epochs = Epochs(seed, num)
    found = np.concatenate([epochs.through(step, size) for step in range(2 * num)])
    drawn = [np.random.default_rng([*seed, epoch]).permutation(num) for epoch in range(2 * size)]
    assert found.tolist() == np.concatenate(drawn).tolist()


def test_a_step_depends_on_the_seed_and_its_number_alone() -> None:
    used = Epochs([0], 7)
    forwards = [used.cut(step, 3).tolist() for step in range(9)]
    assert [used.cut(step, 3).tolist() for step in reversed(range(9))] == forwards[::-1]
    assert [Epochs([1], 7).cut(step, 3).tolist() for step in range(9)] != forwards
