import pytest
import torch

from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.training_family import training_family
from rails_ray.modules import weight_files
from rails_ray.training import checkpoints
from support.examples import sampler_of, small_config


def test_weights_come_back_as_they_were() -> None:
    model = DualEncoderTraining.of(small_config()).model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    back = training_family(small_config()).trained_model([("model.safetensors", weight_files.to_bytes(model))])
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), back.state_dict().values(), strict=True))
    assert not back.training


@pytest.mark.parametrize("has_best", [False, True])
def test_a_checkpoint_comes_back_as_it_was(has_best: bool) -> None:
    model = DualEncoderTraining.of(small_config()).model()
    optimizer = torch.optim.AdamW(model.parameters())
    features = sampler_of(model).batch(0).queries
    model.encode_queries(features).components.sum().backward()  # leaves some parameters without moments
    optimizer.step()
    best = weight_files.copy(model) if has_best else None
    optimizer.step()
    facts = {"losses": [0.1, 1 / 3], "name": "a.b"}
    data = checkpoints.checkpoint_to_bytes(model, optimizer, facts, best)

    other = DualEncoderTraining.of(small_config()).model()
    its_optimizer = torch.optim.AdamW(other.parameters())
    assert checkpoints.load_checkpoint(other, its_optimizer, data)[0] == facts
    found = checkpoints.load_checkpoint(other, its_optimizer, data)[1]
    for expected, back in ((model.state_dict(), other.state_dict()), (best or {}, found or {})):
        assert expected.keys() == back.keys()
        assert all(torch.equal(expected[name], back[name]) for name in expected)
    moments, back = optimizer.state_dict()["state"], its_optimizer.state_dict()["state"]
    assert moments.keys() == back.keys() != set()
    assert all(torch.equal(moments[number][name], back[number][name]) for number in moments for name in moments[number])


def test_weights_of_another_model() -> None:
    weights = weight_files.to_bytes(DualEncoderTraining.of(small_config("dot product")).model())
    with pytest.raises(
        ValueError, match=r"must fit a model of this config, got none for item_components\.gate\.0\.bias"
    ):
        training_family(small_config()).trained_model([("model.safetensors", weights)])


def test_weights_that_are_none() -> None:
    with pytest.raises(ValueError, match="weights must be safetensors, got: "):
        training_family(small_config()).trained_model([("model.safetensors", b"PK\x03\x04 a pickle, perhaps")])


class Scaled(torch.nn.Module):
    """A look-up with a buffer that is not stored."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(3, 2)
        self.register_buffer("scale", torch.full((2,), 7.0), persistent=False)


def test_a_module_takes_stored_weights_and_makes_the_rest_itself() -> None:
    stored = Scaled()
    before = torch.get_rng_state()
    loaded = weight_files.loaded(Scaled, weight_files.to_bytes(stored))
    assert torch.equal(loaded.rows.weight, stored.rows.weight)
    assert loaded.rows.weight.requires_grad
    assert torch.equal(loaded.scale, stored.scale)
    assert torch.equal(torch.get_rng_state(), before)  # nothing was initialised
    with pytest.raises(ValueError, match=r"weights must fit a model of this config, got none for rows\.weight"):
        weight_files.loaded(Scaled, weight_files.to_bytes(torch.nn.Embedding(3, 2)))
