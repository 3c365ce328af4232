"""What every way to cut vectors into parts with codewords must hold. A new one is one line in `MEMBERS`."""

from collections.abc import Callable
from typing import get_args

import pytest
import torch

from rails_ray.families.vector_items.storing import Method
from rails_ray.modules.quantizers.distill_vq import DistillVqConfig
from rails_ray.modules.quantizers.dpq import DpqConfig
from rails_ray.modules.quantizers.dqn import DqnConfig
from rails_ray.modules.quantizers.dvsq import DvsqConfig
from rails_ray.modules.quantizers.faiss_convert import from_faiss, to_faiss
from rails_ray.modules.quantizers.jpq import JpqConfig
from rails_ray.modules.quantizers.mopq import MopqConfig
from rails_ray.modules.quantizers.opq import fit_opq
from rails_ray.modules.quantizers.pq import fit_pq
from rails_ray.modules.quantizers.product import ProductQuantizer, pack, unpack
from rails_ray.modules.quantizers.spq import SpqConfig
from rails_ray.storage import quantizers
from support.quantizers import SELECTIONS, some_vectors

NUM_SUBSPACES, WIDTH = 3, 6
Make = Callable[[int], ProductQuantizer]  # number of codewords


def trained_by(method: Method) -> Make:
    """What a step of training leaves."""

    def make(num_codewords: int) -> ProductQuantizer:
        learned = method.begin(fit_opq(some_vectors(600, WIDTH), NUM_SUBSPACES, num_codewords, seed=0))
        own = [parameter for parameter in learned.parameters() if parameter.requires_grad]
        learned(some_vectors(50, WIDTH)).read_back.square().sum().backward()
        torch.optim.Adam(own, 0.05).step()
        return learned.frozen()

    return make


TRAINED = (DqnConfig(), DvsqConfig(), SpqConfig(), DpqConfig(), MopqConfig(), DistillVqConfig(), JpqConfig())
MEMBERS: dict[str, Make] = {
    "pq": lambda num_codewords: fit_pq(some_vectors(600, WIDTH), NUM_SUBSPACES, num_codewords, seed=0),
    "opq": lambda num_codewords: fit_opq(some_vectors(600, WIDTH), NUM_SUBSPACES, num_codewords, seed=0),
    **{method.kind: trained_by(method) for method in TRAINED},
    **{f"mopq, {selection}": trained_by(MopqConfig(selection=selection)) for selection in SELECTIONS},
    "mopq, balanced": trained_by(MopqConfig(is_balanced=True)),
}
members = pytest.mark.parametrize("make", MEMBERS.values(), ids=MEMBERS)
sizes = pytest.mark.parametrize("num_codewords", [5, 16, 40, 256])


def test_every_method_is_in_the_suite() -> None:
    assert {method.kind for method in TRAINED} == {member.kind for member in get_args(Method)}


@members
@sizes
def test_codes_are_scored_as_what_they_stand_for(make: Make, num_codewords: int) -> None:
    quantizer, vectors, queries = make(num_codewords), some_vectors(40, WIDTH, 1), some_vectors(7, WIDTH, 2)
    codes = quantizer.encode(vectors)
    assert codes.dtype == torch.uint8
    assert codes.shape == (40, NUM_SUBSPACES)
    assert int(codes.max()) < num_codewords
    back = quantizer.decode(codes)
    assert back.shape == vectors.shape
    assert torch.cosine_similarity(vectors, back).mean() > 0.7, "codes tell of their vectors"
    tables = quantizer.lookup_table(queries)
    looked_up = tables[:, torch.arange(NUM_SUBSPACES), codes.long()].sum(dim=2)
    assert torch.allclose(looked_up, queries @ back.T, atol=1e-4)
    if quantizer.is_packed:
        assert torch.equal(unpack(pack(codes), NUM_SUBSPACES), codes)


@pytest.mark.long
@members
@sizes
def test_it_is_the_same_in_faiss_and_in_a_file(make: Make, num_codewords: int) -> None:
    quantizer, vectors = make(num_codewords), some_vectors(40, WIDTH, 1)
    codes = quantizer.encode(vectors)
    there = to_faiss(quantizer, codes)
    assert torch.allclose(torch.from_numpy(there.reconstruct_n(0, 40)), quantizer.decode(codes), atol=1e-5)
    back, same = from_faiss(there)
    assert torch.equal(same, codes)
    assert torch.allclose(back.decode(same), quantizer.decode(codes), atol=1e-5)
    stored, centroids = quantizers.from_bytes(quantizers.to_bytes(quantizer, None))
    assert centroids is None
    assert torch.equal(stored.encode(vectors), codes)
    assert torch.equal(stored.decode(codes), quantizer.decode(codes))


@members
def test_vectors_that_are_none(make: Make) -> None:
    quantizer = make(5)
    with pytest.raises(ValueError, match="vectors must be finite, got NaN or infinity in row 0"):
        quantizer.encode(torch.full((1, WIDTH), torch.nan))
    with pytest.raises(ValueError, match=f"vectors must have the {WIDTH} numbers that a code stands for, got 5"):
        quantizer.encode(torch.zeros(1, 5))
    assert quantizer.encode(torch.zeros(0, WIDTH)).shape == (0, NUM_SUBSPACES)
