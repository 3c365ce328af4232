"""Codebooks that a run has trained: its weights, read."""

from collections.abc import Iterable

import torch

from rails_ray.families.vector_items.storing import PqItems, TrainedConfig
from rails_ray.modules import weight_files
from rails_ray.modules.quantizers.product import ProductQuantizer
from rails_ray.modules.quantizers.read_back import decoded
from rails_ray.modules.similarities.states import ItemState
from rails_ray.storage.described import WEIGHTS
from rails_ray.storage.filesystem import Storage

ENCODER, QUANTIZER = "encoder", "quantizer"  # the pieces of a run that trains codebooks


def read_back(quantizer: ProductQuantizer, items: ItemState) -> ItemState:
    """Items as they are after encoding and decoding."""
    codes = quantizer.encode(items.components.flatten(start_dim=1))
    return decoded(quantizer, codes, items.num_components, items.gate)


def of_encoder(weights: Iterable[tuple[str, bytes]]) -> tuple[bytes, str]:
    """The file of a run that holds its encoder, and what the names of its tensors begin with there."""
    files = dict(weights)
    of_codebooks = files.pop(f"{QUANTIZER}/{WEIGHTS}", None)
    if of_codebooks is not None and weight_files.has_below(of_codebooks, "model."):
        return of_codebooks, "model."
    [data] = files.values()
    return data, ""


def trained_quantizer(items: PqItems, weights: bytes, num_components: int, width: int) -> ProductQuantizer:
    """The quantizer that a run has trained.

    Args:
        num_components: P_X.
        width: d of a component.

    Raises:
        ValueError: if the weights do not fit.
    """
    assert isinstance(items.quantizer, TrainedConfig)
    learned = items.quantizer.method.begin(zeros_of(items, num_components, width))
    weight_files.load_below(learned, weights, "quantizer.")
    return learned.frozen()


def read_quantizer(storage: Storage, run: str, stored: PqItems, items: ItemState) -> ProductQuantizer:
    """The quantizer that a run has trained for items like these.

    Args:
        stored: how the run stores them.
    """
    weights = storage.read(f"runs/{run}/{QUANTIZER}/{WEIGHTS}")
    return trained_quantizer(stored, weights, items.num_components, items.width)


def zeros_of(items: PqItems, num_components: int, width: int) -> ProductQuantizer:
    """Codebooks of the run's sizes."""
    assert isinstance(items.quantizer, TrainedConfig)
    parts = torch.zeros(num_components * items.num_subspaces, items.num_codewords, width // items.num_subspaces)
    return ProductQuantizer.of(parts, torch.eye(width) if items.quantizer.start.kind == "opq" else None)
