"""The hash by which pieces of texts and tokens fall into places: MurmurHash3's finaliser of a 64-bit number.

MurmurHash3 has unsigned integers; these are the signed ones with the same bits, as a GPU has only signed ones.

Axes: W tokens or pieces.
"""

from jaxtyping import Int
from torch import Tensor

FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
BASE = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: odd, so that it has an inverse modulo 2^64


def mixed(numbers: Int[Tensor, " W"]) -> Int[Tensor, " W"]:
    """Every input bit reaches the low bits that a modulus reads."""
    for factor in FACTORS:
        numbers = (numbers ^ _shifted(numbers)) * signed(factor)
    return numbers ^ _shifted(numbers)


def mixed_number(number: int) -> int:
    """`mixed` of one unsigned number."""
    for factor in FACTORS:
        number = ((number ^ (number >> 33)) * factor) & (2**64 - 1)
    return number ^ (number >> 33)


def signed(number: int) -> int:
    """The signed 64-bit integer with the bits of an unsigned one."""
    return number - 2**64 if number >= 2**63 else number


def hashed(tokens: Int[Tensor, " W"], seed: int, num_inputs: int) -> Int[Tensor, " W"]:
    """Feature hashing: a token's place among `num_inputs`, another for another seed."""
    return mixed(tokens + signed(seed * BASE % 2**64)).bitwise_and(2**63 - 1) % num_inputs


def _shifted(numbers: Int[Tensor, " W"]) -> Int[Tensor, " W"]:
    """Shifted right by 33 bits, filled with zeros."""
    return (numbers >> 33).bitwise_and(2**31 - 1)
