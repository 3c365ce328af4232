import pytest
import torch

from examples import small_config
from rails_ray import build
from rails_ray.training import state


def test_weights_come_back_as_they_were() -> None:
    model = build.model(small_config())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    back = build.trained_model(small_config(), state.to_bytes(model))
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), back.state_dict().values(), strict=True))
    assert not back.training


def test_weights_of_another_model() -> None:
    weights = state.to_bytes(build.model(small_config("dot product")))
    with pytest.raises(ValueError, match="weights must be those of the config beside them, got: Error"):
        build.trained_model(small_config(), weights)


def test_weights_that_are_none() -> None:
    with pytest.raises(ValueError, match="weights must be safetensors, got: "):
        build.trained_model(small_config(), b"PK\x03\x04 a pickle, perhaps")
