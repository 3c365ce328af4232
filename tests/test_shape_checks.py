"""The wrapper that stands in for jaxtyping's compares what that compares."""

from dataclasses import dataclass

import beartype
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float
from torch import Tensor

from support.shape_checks import checked

Vector = Float[Tensor, " d"]


def product(one: Vector, other: Vector, scale: int = 1) -> Float[Tensor, ""]:
    return scale * one @ other if scale else one


@dataclass
class Pair:
    one: Vector
    other: Vector


def test_axes_of_arguments_and_result_agree() -> None:
    own = checked(product, typechecker=beartype.beartype)
    assert own(torch.ones(3), torch.ones(3)) == 3
    for arguments in ((torch.ones(3), torch.ones(4)), (torch.ones(3), torch.ones(3, 1)), (torch.ones(2), [1.0, 2.0])):
        with pytest.raises(BeartypeCallHintViolation):
            own(*arguments)
    with pytest.raises(BeartypeCallHintViolation):
        own(torch.ones(3), torch.ones(3), 0)  # a vector in place of a number
    assert own(torch.ones(2), torch.ones(2)) == 2, "each call has axes of its own"


def test_fields_of_a_dataclass_agree() -> None:
    own = checked(Pair, typechecker=beartype.beartype)
    own(torch.ones(3), torch.ones(3))
    with pytest.raises(BeartypeCallHintViolation):
        own(torch.ones(3), torch.ones(4))


def test_other_functions_are_checked_by_type() -> None:
    def half(number: int) -> float:
        return number / 2

    with pytest.raises(BeartypeCallHintViolation):
        checked(half, typechecker=beartype.beartype)("4")
