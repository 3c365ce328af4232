"""The text encoder of a version whose queries are vectors: a file of the version says which model reads a text."""

from pydantic import TypeAdapter

from rails_ray.allowed_code import OURS_ALONE
from rails_ray.errors import renaming
from rails_ray.modules.encoders.config import InputFacts
from rails_ray.modules.encoders.frozen import FrozenText, SentenceTransformerConfig

TEXT = {"text": "string"}  # the field of a request that such a version takes too
CODEC = TypeAdapter(SentenceTransformerConfig)


def query_encoder_file(folder: str, width: int | None) -> bytes:
    """Check a model of texts, and describe it by its place, its digest and its prompt for queries.

    Args:
        folder: of a model of sentence-transformers, or the name of one in the local cache of Hugging Face.
        width: numbers of a query; None if queries are no vectors.

    Raises:
        UnsupportedError: if sentence-transformers is not installed.
        ValueError: if there is no such model, its vectors have another width, or queries are no vectors.
    """
    if width is None:
        raise ValueError(f"query_encoder must be for items whose queries are vectors, got {folder} for other queries")
    with renaming(r"encoder\.pretrained", "query_encoder"):
        known = SentenceTransformerConfig(pretrained=folder).for_inputs(InputFacts(), folder, OURS_ALONE)
    if known.width != width:
        raise ValueError(
            f"query_encoder must make vectors of {width} numbers, as the items' are compared with, got {known.width} "
            f"from {folder}: name the model that made the items' vectors"
        )
    return CODEC.dump_json(known)


def query_encoder_of(described: bytes) -> FrozenText:
    """The model that such a file describes; it is loaded when the first text comes."""
    return FrozenText(CODEC.validate_json(described))
