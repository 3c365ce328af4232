"""A frozen model of texts -> the same, with what it has read kept in storage."""

import hashlib
import json
from importlib.metadata import version
from typing import TypeVar

from rails_ray.modules.encoders.frozen import FrozenText, SentenceTransformerConfig
from rails_ray.modules.encoders.pretrained import Side
from rails_ray.modules.model import Model
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.text_vectors import TextVectors

FORMAT = 1
PACKAGES = ("sentence-transformers", "transformers", "tokenizers", "torch")  # that compute the vectors

AnyModel = TypeVar("AnyModel", bound=Model)


def with_kept_texts(model: AnyModel, storage: Storage) -> AnyModel:
    """The model, which reads each text once if it is one of sentence-transformers. The code behind the name of a
    function may change, so that nothing of it is kept."""
    encoder = getattr(model, "encoder", None) or getattr(model, "reads", None)
    if isinstance(encoder, FrozenText) and isinstance(encoder.config, SentenceTransformerConfig):
        config = encoder.config
        if config.sha256:
            prompts: dict[Side, str | None] = {"queries": config.query_prompt, "items": config.item_prompt}
            encoder.kept = {
                side: TextVectors(storage, _digest(config, prompt), config.width) for side, prompt in prompts.items()
            }
    return model


def _digest(config: SentenceTransformerConfig, prompt: str | None) -> str:
    """The digest of all that decides a vector. A model of one width has one way to truncate its vectors to it."""
    decides = [FORMAT, config.sha256, config.width, *map(version, PACKAGES)]
    decides += [] if prompt is None else [prompt]  # without, as vectors were kept before
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()
