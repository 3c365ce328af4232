"""Check the folder of a model, as `transformers` and sentence-transformers save it, before either opens it.

Such a folder can do more than hold numbers: weights in pickles, modules that it names by import paths, attention from
the Hub. Both packages refuse much of that by themselves, each version something else. What is looked at here does not
depend on the version:

    weights      safetensors alone, for each part of the model
    modules      sentence-transformers' own, by a list
    activations  torch.nn's own
    attention    torch's own: no kernel that is fetched
    adapters     none: they name another model, and packages to import
    arguments    of a list: others make transformers fetch kernels, or read other folders
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODULES = frozenset(
    {"CNN", "Dense", "Dropout", "LSTM", "LayerNorm", "Normalize", "Pooling", "StaticEmbedding", "Transformer"}
    | {"WeightedLayerPooling"}
)
MODULE = re.compile(r"sentence_transformers(\.[a-z_]+)*\.([A-Za-z]+)")
ACTIVATION = re.compile(r"torch\.nn(\.modules\.[a-z_]+)?\.[A-Z][A-Za-z0-9]*")
PICKLED = re.compile(r"(pytorch|adapter)_model.*\.bin")  # what either package looks for beside safetensors
VOCABULARIES = ("tokenizer.json", "vocab.json")  # megabytes that configure nothing
IMPLEMENTATIONS = ("attn_implementation", "_attn_implementation")
PLACES = ("tokenizer_name_or_path",)  # of other folders, which nobody has looked at
PLAIN_ARGUMENTS = frozenset(  # that sentence-transformers passes on to transformers: none fetches or imports anything
    {"attn_implementation", "do_lower_case", "dtype", "model_max_length", "padding_side", "torch_dtype"}
    | {"truncation_side", "use_safetensors"}
)
INSTALLED = (None, "eager", "sdpa", "flex_attention")  # of these; transformers fetches others from the Hub


def check(folder: Path, name: str) -> None:
    """Check a folder before any package opens it.

    Args:
        name: the folder in messages, as the subject of a sentence.

    Raises:
        ValueError: if it holds weights in other files than safetensors, or names code.
    """
    for part in [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]:
        _check_weights(part, name)
    for path in sorted(folder.rglob("*.json")):
        if path.name in VOCABULARIES:
            continue
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{name} must hold JSON in {path.name}, got: {error}") from None
        if path.name == "modules.json":
            _check_modules(read, name)
        if path.name == "adapter_config.json":
            raise ValueError(f"{name} must hold a whole model, got an adapter: merge it into its model and save that")
        for key, value in _pairs(read):
            _check_pair(key, value, name, path.name)


def _check_weights(part: Path, name: str) -> None:
    files = sorted(path.name for path in part.iterdir() if path.is_file())
    pickled = [file for file in files if PICKLED.fullmatch(file)]
    if pickled and not any(file.endswith(".safetensors") for file in files):
        raise ValueError(
            f"{name} must hold its weights as safetensors, got {pickled[0]}, which can run code when it is read: load "
            "the model where you trust it, and save it with save_pretrained(folder, safe_serialization=True)"
        )


def _check_modules(read: Any, name: str) -> None:
    if not isinstance(read, list) or not all(isinstance(module, dict) for module in read):
        raise ValueError(f"{name} must list its modules in modules.json, got {type(read).__name__}")
    for module in read:
        kind, path = str(module.get("type")), str(module.get("path", ""))
        found = MODULE.fullmatch(kind)
        if found is None or found[2] not in MODULES:
            raise ValueError(
                f"{name} must be made of sentence-transformers' own modules {', '.join(sorted(MODULES))}, got {kind!r}"
            )
        if ".." in Path(path).parts or Path(path).is_absolute():
            raise ValueError(f"{name} must hold its modules in folders of its own, got {path!r}")


def _check_pair(key: str, value: Any, name: str, file: str) -> None:
    if key == "weight_map" and isinstance(value, dict):
        for weights in value.values():
            if Path(str(weights)).name != weights or not weights.endswith(".safetensors"):
                raise ValueError(f"{name} must hold its weights as safetensors, got {weights!r} in {file}")
    elif key == "trust_remote_code" and value:
        raise ValueError(f"{name} must need no code of its own, got trust_remote_code in {file}")
    elif key == "activation_function" and "." in str(value) and not ACTIVATION.fullmatch(str(value)):
        raise ValueError(f"{name} must name activations of torch.nn, got {value!r} in {file}")
    elif key in PLACES and value:
        raise ValueError(f"{name} must hold all that it needs, got {key} {value!r} in {file}")
    elif key.endswith(("_args", "_kwargs")) and isinstance(value, dict):
        for argument in sorted(value.keys() - PLAIN_ARGUMENTS - {"trust_remote_code"}):
            raise ValueError(
                f"{name} must give its packages no arguments but {', '.join(sorted(PLAIN_ARGUMENTS))}, got "
                f"{argument!r} in {file}"
            )
    elif key in IMPLEMENTATIONS:
        for implementation in value.values() if isinstance(value, dict) else [value]:
            if implementation not in INSTALLED:
                raise ValueError(f"{name} must name attention that torch has, got {implementation!r} in {file}")


def _pairs(read: Any) -> Iterator[tuple[str, Any]]:
    """All keys with their values, however deep."""
    below = [read]
    while below:
        part = below.pop()
        if isinstance(part, dict):
            yield from part.items()
            below += part.values()
        elif isinstance(part, list):
            below += part
