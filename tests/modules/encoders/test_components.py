from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rails_ray.modules.encoders.components import (
    ComponentsConfig,
    GivenItems,
    GivenQueries,
    ItemComponents,
    QueryComponents,
)
from rails_ray.modules.encoders.temperature import TemperatureConfig, TemperatureHead

CONFIG = ComponentsConfig(width=4, query_hidden=6, gate_hidden=5)


def test_query_components_are_a_normalised_projection_of_a_glu() -> None:
    torch.manual_seed(0)
    layer = QueryComponents(3, (2, 3), CONFIG, TemperatureConfig())
    representation = torch.randn(5, 3)
    state = layer(representation)
    a, b = layer.hidden(representation).chunk(2, dim=1)
    expected = layer.project(a * torch.sigmoid(b)).reshape(5, 2, 4)
    expected = expected / expected.norm(dim=-1, keepdim=True)
    assert torch.allclose(state.components, expected, atol=1e-6)
    assert state.gate.shape == (5, 6)
    assert state.temperature.shape == (5,)


def test_query_components_without_a_glu_are_a_linear_map() -> None:
    torch.manual_seed(0)
    layer = QueryComponents(3, (1, 1), ComponentsConfig(width=4, query_hidden=0), TemperatureConfig())
    representation = torch.randn(2, 3)
    expected = F.normalize(layer.project(representation), dim=-1)
    assert torch.allclose(layer(representation).components[:, 0], expected)


def test_item_state_holds_the_mean_component() -> None:
    torch.manual_seed(0)
    state = ItemComponents(3, (2, 3), CONFIG)(torch.randn(5, 3))
    assert state.components.norm(dim=-1).allclose(torch.ones(5, 3))
    assert torch.allclose(state.average, state.components.sum(1) / 3)
    assert state.gate.shape == (5, 6)


def test_components_of_length_at_most_one_keep_what_is_shorter() -> None:
    torch.manual_seed(0)
    config = replace(CONFIG, lengths="at_most_one", query_hidden=0)
    representation = torch.randn(5, 3) * torch.tensor([0.01, 0.1, 1.0, 10.0, 100.0])[:, None]
    query, item = QueryComponents(3, (2, 3), config, TemperatureConfig()), ItemComponents(3, (2, 3), config)
    state = item(representation)
    for layer, found in ((query, query(representation).components), (item, state.components)):
        for line, own in zip(found, layer.project(representation).view(5, -1, 4), strict=True):
            for component, projected in zip(line, own, strict=True):
                length = projected.norm().item()
                assert torch.allclose(component, projected / max(length, 1.0))
        assert (found.norm(dim=-1) < 0.99).any()
    assert torch.allclose(state.average, state.components.sum(1) / 3)


@pytest.mark.parametrize(("shortest", "lengths"), [(0.0, [1.0, 1.0, 1.0]), (1.0, [0.1, 0.5, 1.0])])
def test_given_components_of_length_one_or_at_most_one(shortest: float, lengths: list[float]) -> None:
    representation = F.normalize(torch.randn(3, 8), dim=1) * torch.tensor([0.1, 0.5, 7.0])[:, None]
    query = GivenQueries(TemperatureConfig(), shortest)(representation)
    item = GivenItems(8, (1, 1), CONFIG, shortest=shortest)(representation)
    for found in (query.components[:, 0], item.components[:, 0], item.average):
        assert found.norm(dim=1).tolist() == pytest.approx(lengths)
        assert torch.allclose(F.normalize(found, dim=1), F.normalize(representation, dim=1), atol=1e-6)


def test_one_pair_of_components_has_no_gate() -> None:
    representation = torch.randn(2, 3)
    assert QueryComponents(3, (1, 1), CONFIG, TemperatureConfig())(representation).gate is None
    assert ItemComponents(3, (1, 1), CONFIG)(representation).gate is None


def test_a_zero_vector_stays_finite() -> None:
    layer = ItemComponents(3, (1, 1), CONFIG)
    torch.nn.init.zeros_(layer.project.weight)
    torch.nn.init.zeros_(layer.project.bias)
    assert layer(torch.randn(2, 3)).components.abs().sum() == 0


def test_temperature_stays_within_its_bounds() -> None:
    head = TemperatureHead(2, TemperatureConfig(lowest=0.01, highest=0.1))
    assert head(torch.randn(3, 2)).tolist() == pytest.approx([10**-1.5] * 3)  # the middle, before training
    torch.nn.init.ones_(head.output.weight)
    torch.nn.init.ones_(head.hidden.weight)
    torch.nn.init.zeros_(head.hidden.bias)
    tau_q = head(torch.tensor([[-100.0, -100.0], [100.0, 100.0]]))
    assert (tau_q >= 0.01 - 1e-6).all()
    assert (tau_q <= 0.1 + 1e-6).all()
    assert tau_q[1].item() == pytest.approx(0.1)


def test_one_temperature_for_all_queries_is_learnt() -> None:
    head = TemperatureHead(2, TemperatureConfig(lowest=0.01, highest=0.1, hidden=0))
    tau_q = head(torch.randn(3, 2))
    assert tau_q.tolist() == pytest.approx([10**-1.5] * 3)
    tau_q.sum().backward()
    assert [parameter.grad.item() for parameter in head.parameters()] == pytest.approx(
        [3 * 10**-1.5 * 0.25 * 2.302585], rel=1e-4
    )


@pytest.mark.parametrize(("lowest", "highest"), [(0.0, 0.1), (0.1, 0.1), (-0.1, 0.1)])
def test_temperature_bounds_out_of_order(lowest: float, highest: float) -> None:
    with pytest.raises(ValueError, match=f"lowest must be above 0 and below highest, got {lowest} and {highest}"):
        TemperatureConfig(lowest=lowest, highest=highest)


def test_config_out_of_range() -> None:
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        ComponentsConfig(width=0)


@pytest.mark.parametrize("made", [ItemComponents, GivenItems])
def test_a_gate_that_does_not_read_its_side(made: Any) -> None:
    representation = torch.randn(5, 8)
    assert (made(8, (3, 2), CONFIG, gate_reads=False)(representation).gate == torch.ones(5, 6)).all()
    layer = QueryComponents(8, (3, 2), CONFIG, TemperatureConfig(), gate_reads=False)
    assert (layer(representation).gate == torch.ones(5, 6)).all()
