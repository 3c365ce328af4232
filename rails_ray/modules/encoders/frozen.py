"""Texts through a model that was trained elsewhere, as it is: one of sentence-transformers, or any function.

    sentence_transformer   --encoder.pretrained MODEL      a folder that sentence-transformers has saved, or the name of
                                                           a model in the local cache of Hugging Face
    function               --encoder.function MODULE:NAME  takes a list of texts and returns their vectors [B, D]

A model of sentence-transformers reads queries and items as its users have it: by `encode_query` and `encode_document`,
after the prompts that it brings. Its vectors are compared by their directions.

Both must be at the same place on every machine of a cluster. The folder's digest lies in the run's config, so that no
other model answers for it. `rails_ray.allowed_code` says which functions of a stored config are called, `model_folder`
what a folder may hold.

Axes: B texts, D width of a vector.
"""

import importlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from rails_ray.allowed_code import OURS_ALONE, AllowedCode, is_path
from rails_ray.counting import advance
from rails_ray.errors import DamagedError
from rails_ray.modules.encoders.config import EncoderConfig, Form, InputFacts
from rails_ray.modules.encoders.pretrained import (
    OF_MODEL,
    Encode,
    Side,
    check_similarity,
    digest_of,
    encode_of,
    folder_of,
    prompt_of,
    sentence_transformer,
)
from rails_ray.modules.encoders.vectors import VectorRows, scaled
from rails_ray.modules.encoders.words import is_blank

ENCODER = "encoder function"  # what an import path names, in messages
BATCH_TEXTS = 256  # texts that the model gets at once
BLOCK_TEXTS = 2**14  # texts whose vectors are kept together

Read = Callable[[Sequence[str]], NDArray[np.float32]]
Kept = Callable[[Sequence[str], Read], NDArray[np.float32]]
"""Gives the vectors of texts, and has those read that it does not know."""


class Encoders(NamedTuple):
    """The two functions that read the texts of queries and of items."""

    queries: Encode
    items: Encode


class FrozenTextConfig(EncoderConfig):
    """A model of texts that was trained elsewhere.

    width: D; 0 for the model's.
    """

    form: ClassVar[Form] = "text"
    is_frozen: ClassVar[bool] = True
    width: int

    @abstractmethod
    def load(self, allowed: AllowedCode = OURS_ALONE) -> Encoders:
        """Load the model.

        Raises:
            DamagedError: if its folder holds another model than before.
            UnsupportedError: if sentence-transformers is not installed.
            ValueError: if there is no such model or function, or it is not allowed.
        """

    @property
    def shapes(self) -> tuple[int, tuple[int, int]] | None:
        return (self.width, (1, self.width)) if self.width else None

    def make(self, num_components: tuple[int, int], width: int, allowed: AllowedCode) -> "FrozenText":
        return FrozenText(self, allowed)

    def width_of_vectors(self, allowed: AllowedCode = OURS_ALONE) -> int:
        """The width, of the model's vectors if the config does not say. Raises what `load` does."""
        return self.width or int(vectors_of(self.load(allowed).items, ["a"]).shape[1])


@dataclass(frozen=True, kw_only=True)
class SentenceTransformerConfig(FrozenTextConfig):
    """A model of sentence-transformers.

    Args:
        pretrained: its folder; `for_inputs` also takes the name of a model in the local cache of Hugging Face.
        width: D; 0 for the model's.
        sha256: digest of the folder; empty for the folder's.
        query_prompt: text before each query: `auto` for the model's prompt, a name of another that it has, or a text;
            empty for none. None is for runs of earlier releases, which read both sides by `encode`.
        item_prompt: likewise of each item.
        truncate_dim: first numbers of a vector that are kept, of a model that was trained for it; 0 for the model's.
    """

    kind: Literal["sentence_transformer"] = "sentence_transformer"
    pretrained: str = ""
    width: int = 0
    sha256: str = ""
    query_prompt: str | None = OF_MODEL
    item_prompt: str | None = OF_MODEL
    truncate_dim: int = 0

    def __post_init__(self) -> None:
        if self.truncate_dim < 0:
            raise ValueError(f"truncate_dim must be at least 0, got {self.truncate_dim}")

    def load(self, allowed: AllowedCode = OURS_ALONE) -> Encoders:
        return self._encoders(self._model())

    def _model(self) -> Any:
        if self.sha256 and digest_of(self.pretrained) != self.sha256:
            raise DamagedError(
                f"encoder.pretrained {self.pretrained} must hold the model that the run was made with, got another: "
                "restore it or train a new run"
            )
        return sentence_transformer(self.pretrained, self.truncate_dim)

    def _encoders(self, model: Any) -> Encoders:
        return Encoders(encode_of(model, "queries", self.query_prompt), encode_of(model, "items", self.item_prompt))

    def for_inputs(self, facts: InputFacts, place: str, allowed: AllowedCode) -> "SentenceTransformerConfig":
        """Fill in width, prompts, the folder and its digest; the folder becomes absolute, as workers run in others.

        Raises:
            ValueError: if there is no such model, it has no such prompt or fewer numbers, or its vectors are to be
                compared as they are and it compares them otherwise than by their directions.
        """
        folder = folder_of(self.pretrained)
        known = replace(self, pretrained=folder, sha256=self.sha256 or digest_of(folder))
        model = known._model()
        if facts.is_compared and self.query_prompt is not None:
            check_similarity(model, folder)
        known = replace(
            known,
            query_prompt=prompt_of(model, "queries", self.query_prompt),
            item_prompt=prompt_of(model, "items", self.item_prompt),
        )
        width = vectors_of(known._encoders(model).items, ["a"], self.width).shape[1]
        if width < self.truncate_dim:
            raise ValueError(
                f"encoder.truncate_dim must be at most the {width} numbers of a vector of {folder}, got "
                f"{self.truncate_dim}"
            )
        return replace(known, width=width)


@dataclass(frozen=True, kw_only=True)
class FunctionConfig(FrozenTextConfig):
    """A function from texts to vectors.

    Args:
        function: its import path, MODULE:NAME.
        width: D; 0 for what it returns.
    """

    kind: Literal["function"] = "function"
    function: str = ""
    width: int = 0

    def check_code(self, allowed: AllowedCode) -> None:
        if not is_path(self.function):
            raise ValueError(_refusal(self.function))
        allowed.check(ENCODER, self.function)
        allowed.check_place(ENCODER, self.function)

    def load(self, allowed: AllowedCode = OURS_ALONE) -> Encoders:
        self.check_code(allowed)
        function = function_of(self.function, allowed)
        return Encoders(function, function)

    def for_inputs(self, facts: InputFacts, place: str, allowed: AllowedCode) -> "FunctionConfig":
        return replace(self, width=self.width_of_vectors(allowed))


FrozenConfig = SentenceTransformerConfig | FunctionConfig


class FrozenText(nn.Module):
    """Texts to representations by a model of which nothing is trained. It is loaded when the first text comes.

    kept: keeps vectors of either side; by default none.

    Args:
        allowed: functions that may be called.

    Raises:
        ValueError: if the config names another.
    """

    form: Literal["text"] = "text"
    takes_representations = True

    def __init__(self, config: FrozenTextConfig, allowed: AllowedCode = OURS_ALONE) -> None:
        super().__init__()
        config.check_code(allowed)
        self.config = config
        self.allowed = allowed
        self.kept: dict[Side, Kept] = {"queries": read_all, "items": read_all}

    @property
    def query_width(self) -> int:
        return self.config.width

    @property
    def item_width(self) -> int:
        return self.config.width

    @cached_property
    def _encode(self) -> Encoders:
        return self.config.load(self.allowed)

    def query_features(self, inputs: Sequence[str]) -> VectorRows:
        """
        Raises:
            ValueError: if the function returns something else than a finite vector of the width for each text.
        """
        return self._features("queries", inputs)

    def item_features(self, inputs: Sequence[str]) -> VectorRows:
        return self._features("items", inputs)

    def _features(self, side: Side, inputs: Sequence[str]) -> VectorRows:
        found = np.empty((len(inputs), self.config.width), dtype=np.float32)
        for first in range(0, len(inputs), BLOCK_TEXTS):
            texts = list(inputs[first : first + BLOCK_TEXTS])
            found[first : first + len(texts)] = self.kept[side](texts, partial(self._read, side, first, len(inputs)))
            advance(first + len(texts), len(inputs), "texts read")
        return VectorRows(found)

    def _read(self, side: Side, first: int, total: int, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of some of `total` texts, after `first` that are read."""
        encode: Encode = getattr(self._encode, side)
        found = np.empty((len(texts), self.config.width), dtype=np.float32)
        for start in range(0, len(texts), BATCH_TEXTS):
            batch = texts[start : start + BATCH_TEXTS]
            found[start : start + len(batch)] = vectors_of(encode, batch, self.config.width)
            advance(first + start + len(batch), total, "texts read")
        return found

    def is_blank(self, query: str) -> bool:
        return is_blank(query)

    def queries(self, features: VectorRows) -> Float[Tensor, "B D"]:
        return scaled(features.tensor)

    def items(self, features: VectorRows) -> Float[Tensor, "B D"]:
        return scaled(features.tensor)

    def __getstate__(self) -> dict[str, Any]:  # the loaded model stays where it is
        return {name: value for name, value in self.__dict__.items() if name != "_encode"}


def read_all(texts: Sequence[str], read: Read) -> NDArray[np.float32]:
    """The vectors of texts of which none is kept."""
    return read(texts)


def function_of(path: str, allowed: AllowedCode) -> Encode:
    """The function at an import path that `check` has let through.

    Raises:
        ValueError: if there is none, or it is defined where nothing is allowed.
    """
    module_name, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{_refusal(path)}: {error}") from None
    allowed.check_defined(ENCODER, path, found)
    if not callable(found):
        raise ValueError(f"encoder.function must be the import path of a function, got {path!r}, which is none")
    encode: Encode = found
    return encode


def _refusal(path: str) -> str:
    return f"encoder.function must be the import path of a function, MODULE:NAME, got {path!r}"


def vectors_of(encode: Encode, texts: Sequence[str], width: int = 0) -> NDArray[np.float32]:
    """The vectors of some texts [B, D].

    Args:
        width: D; 0 if it is not known.

    Raises:
        ValueError: if it does not return a finite vector of this width for each text.
    """
    wanted = f"{len(texts)} x {width or 'D'}"
    try:
        found = np.asarray(encode(texts), dtype=np.float32)
    except Exception as error:  # whatever somebody else's function does
        given = f"{type(error).__name__}: {str(error).partition(chr(10))[0] or 'no message'}"
        raise ValueError(f"the text encoder must return {wanted} numbers for {len(texts)} texts, got {given}") from None
    if found.ndim != 2 or len(found) != len(texts) or (width and found.shape[1] != width) or not found.shape[1]:
        given = " x ".join(map(str, found.shape))
        raise ValueError(f"the text encoder must return {wanted} numbers for {len(texts)} texts, got {given}")
    if not np.isfinite(found).all():
        wrong = texts[int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])]
        raise ValueError(f"the text encoder must return finite numbers, got NaN or infinity for {wrong[:60]!r}")
    return found
