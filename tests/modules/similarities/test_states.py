import torch

from rails_ray.modules.similarities.states import QueryState, concatenate, map_tensors
from support.examples import random_states


def test_slices_concatenate_to_the_whole() -> None:
    query, items = random_states(5, 6)
    for state in (query, items):
        parts = [map_tensors(lambda tensor, first=first: tensor[first : first + 2], state) for first in range(0, 6, 2)]
        whole = concatenate(parts)
        assert torch.equal(whole.components, state.components)
        assert torch.equal(whole.gate, state.gate)
        assert len(whole) == len(state)


def test_a_missing_gate_stays_missing() -> None:
    query, _ = random_states(2, 1)
    bare = QueryState(query.components, None, query.temperature)
    assert map_tensors(lambda tensor: tensor[:1], bare).gate is None
    assert concatenate([bare, bare]).gate is None


def test_average_is_the_mean_component() -> None:
    query, _ = random_states(2, 1)
    assert torch.allclose(query.average[1], (query.components[1, 0] + query.components[1, 1]) / 2)
