"""Config -> objects of items that are stored as codes: their quantizer, and what encodes and searches them.

The quantizer is fitted to a sample of the corpus when encoding first begins, stored with the version, and read when
that is searched.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rails_ray.data.corpus import ItemSource
from rails_ray.families.items import ItemEncoder, check_codes, sampled
from rails_ray.families.vector_items.storing import PqItems, TrainedConfig
from rails_ray.modules.quantizers.measured import measured
from rails_ray.modules.quantizers.opq import OpqConfig, fit_opq
from rails_ray.modules.quantizers.pq import fit_pq
from rails_ray.modules.quantizers.product import ProductQuantizer, pack, residual_norms, unpack
from rails_ray.modules.quantizers.read_back import decoded
from rails_ray.modules.similarities.states import ItemState, QuantizedItems
from rails_ray.search.indexes.codes import check_nlist, fit_lists, lists_of
from rails_ray.search.zeros import zero_rows
from rails_ray.storage import quantizers
from rails_ray.storage.parquet_files import FileRows

SAMPLE_ITEMS = 2**16  # FAISS's k-means takes at most 256 points for each of 256 codewords


def check(config: PqItems, num_items: int) -> None:
    """Check before any work that so many items suffice to fit a quantizer, unless a run has trained one, and lists.

    Raises:
        ValueError: if there are fewer than codewords, or than lists.
    """
    if not isinstance(config.quantizer, TrainedConfig):
        check_codewords(config, num_items, f"--codes {config.num_subspaces}x")
    check_nlist(config.nlist, num_items)


def check_codewords(config: PqItems, num_items: int, option: str) -> None:
    """Check before any work that so many items suffice to fit codebooks.

    Args:
        option: what is given for fewer codewords, up to their number.

    Raises:
        ValueError: if there are fewer than codewords.
    """
    if num_items < config.num_codewords:
        fewer = f"take fewer codewords, {option}{2 ** int(math.log2(num_items))}" if num_items > 1 else "add items"
        raise ValueError(
            f"codes must have at most as many codewords as there are items, {num_items}, got {config.num_codewords}: "
            f"{fewer}"
        )


def sampled_components(source: ItemSource, files: Sequence[FileRows], encode: ItemEncoder) -> Float[Tensor, "N P_X d"]:
    """Components of at most SAMPLE_ITEMS items."""
    return torch.cat([_components(state) for state in sampled(source, files, encode, SAMPLE_ITEMS)])


def _components(state: Any) -> Tensor:
    assert isinstance(state, ItemState)
    return state.components.float().cpu()


def fitted(
    config: PqItems, sample: Float[Tensor, "N P_X d"], seed: int, trained: ProductQuantizer | None = None
) -> bytes:
    """The file of a quantizer for items like these, with centroids if they are put in lists.

    Args:
        trained: the quantizer that a run has trained; None to fit one.

    Raises:
        ValueError: if components cannot be cut into so many parts, or the sample is too small.
    """
    centroids = fit_lists(sample.mean(dim=1), config.nlist, seed) if config.nlist else None
    quantizer = trained or quantizer_of(config, sample, seed)
    return quantizers.to_bytes(quantizer, centroids, measured(quantizer, sample.flatten(start_dim=1)))


def quantizer_of(config: PqItems, sample: Float[Tensor, "N P_X d"], seed: int) -> ProductQuantizer:
    """A quantizer for items like these, or what its training begins with. Raises what `fitted` does."""
    num_components, fitted_by = sample.shape[1], config.quantizer
    num_subspaces, flat = num_components * config.num_subspaces, sample.flatten(start_dim=1)
    if isinstance(fitted_by, TrainedConfig):
        fitted_by = fitted_by.start
    if isinstance(fitted_by, OpqConfig):
        sizes, rounds = (num_subspaces, config.num_codewords), fitted_by.num_rounds
        return fit_opq(flat, *sizes, seed=seed, num_vectors=num_components, num_rounds=rounds)
    return fit_pq(flat, num_subspaces, config.num_codewords, seed=seed)


@dataclass(frozen=True)
class Coded:
    """The contract of `ItemEncoder`: components as codes.

    encode: gives the components.
    centroids: of the lists that items are put in; None for none.
    needs_directions: whether an item whose components are zeros is refused.
    """

    encode: ItemEncoder
    config: PqItems
    quantizer: ProductQuantizer
    centroids: Float[Tensor, "l d"] | None
    needs_directions: bool = False

    def __call__(self, item_ids: Sequence[Any], inputs: Any) -> QuantizedItems:
        state = self.encode(item_ids, inputs)
        assert isinstance(state, ItemState)
        components = state.components.float().cpu()
        if self.needs_directions:
            check_codes(len(zero_rows(components)))
        flat = components.flatten(start_dim=1)
        codes = self.quantizer.encode(flat)
        residuals = residual_norms(self.quantizer, flat, codes, state.num_components)
        lists = None if self.centroids is None else lists_of(components.mean(dim=1), self.centroids)
        gate = None if state.gate is None else state.gate.cpu()
        stored = pack(codes) if self.quantizer.is_packed else codes
        if not self.config.has_vectors:
            return QuantizedItems(stored, residuals, gate, lists=lists)
        return QuantizedItems(stored, residuals, gate, state.components, state.average, lists)


def read_back(items: QuantizedItems, quantizer: ProductQuantizer, longest: float = 1.0) -> ItemState:
    """Items as a similarity scores them: by their vectors if they are kept, or else decoded, of at most that length."""
    if items.components is not None:
        return ItemState(items.components, items.gate, items.average)
    codes = unpack(items.codes, quantizer.num_subspaces) if quantizer.is_packed else items.codes
    return decoded(quantizer, codes, items.num_components, items.gate, longest)
