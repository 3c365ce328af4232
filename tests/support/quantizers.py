"""Product quantizers at random, and a step that trains one."""

import torch
from torch import Tensor

from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.quantizers.learned import Method
from rails_ray.modules.quantizers.product import ProductQuantizer, Selection
from rails_ray.training.quantizing import MethodTerm, Quantizing
from rails_ray.training.step import TrainingStep
from support.examples import small_config

SELECTIONS: tuple[Selection, ...] = ("l2", "cosine", "inner_product", "bilinear")


def a_rotation(width: int, generator: torch.Generator) -> Tensor:
    """Orthogonal."""
    return torch.linalg.qr(torch.randn(width, width, generator=generator))[0]


def a_quantizer(
    num_subspaces: int = 3,
    num_codewords: int = 5,
    part: int = 2,
    *,
    seed: int = 0,
    turns: int | None = None,
    selection: Selection = "l2",
) -> ProductQuantizer:
    """
    Args:
        turns: numbers that the rotation turns at once; None for no rotation.
    """
    generator = torch.Generator().manual_seed(seed)
    codebooks = torch.randn(num_subspaces, num_codewords, part, generator=generator)
    bilinear = torch.randn(num_subspaces, part, part, generator=generator)
    rotation = None if turns is None else a_rotation(turns, generator)
    return ProductQuantizer.of(codebooks, rotation, selection, bilinear)


def some_vectors(num: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(num, width, generator=torch.Generator().manual_seed(seed))


TAU = 0.05


def a_step(method: Method, **options: int) -> TrainingStep:
    """A step of a mixture of two item components, without terms of its own."""
    own = DualEncoderTraining.of(small_config())
    model = own.model()
    quantizing = Quantizing(method, method.begin(a_quantizer(6, 4, 2, turns=6)), **options)
    return TrainingStep(
        model, own.objective(model), own.contrast(), terms=[MethodTerm(method, TAU)], quantizing=quantizing
    )
