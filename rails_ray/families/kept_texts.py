"""A frozen model of texts -> the same, with what it has read kept in storage."""

import hashlib
import json
from importlib.metadata import version
from typing import TypeVar

from rails_ray.modules.encoders.frozen import FrozenText, SentenceTransformerConfig
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
            decides = [FORMAT, config.sha256, config.width, *map(version, PACKAGES)]
            digest = hashlib.sha256(json.dumps(decides).encode()).hexdigest()
            encoder.kept = TextVectors(storage, digest, config.width)
    return model
