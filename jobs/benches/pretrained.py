"""Texts as pretrained vectors of 256 numbers, from the weights in the wheel of `wordllama`: the mean of token vectors.

Its own loader looks for the tokenizer on a server, though the wheel has it.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
WIDTH = 256


@cache
def _loaded() -> tuple[Any, NDArray[np.float32]]:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    spec = find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise ImportError("the package wordllama must be installed: pip install wordllama")
    root = Path(spec.origin).parent
    [vectors] = load_file(root / WEIGHTS).values()
    return Tokenizer.from_file(str(root / TOKENIZER)), vectors.astype(np.float32)


def encode(texts: Sequence[str]) -> NDArray[np.float32]:
    """The vectors of some texts [B, 256]."""
    tokenizer, vectors = _loaded()
    found = [line.ids for line in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
    return np.array([vectors[ids].mean(axis=0) if ids else np.zeros(WIDTH, np.float32) for ids in found])
