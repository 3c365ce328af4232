"""Folders of models from other tools: nothing in them is run, and no pickle is read."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rails_ray.modules.encoders import model_folder
from rails_ray.modules.encoders.frozen import SentenceTransformerConfig
from rails_ray.reranking.rankers import candidates_of
from rails_ray.reranking.rankers.transformers_ranker import TransformersRanker
from support.text_vectors import save_sentence_transformer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "blue", "hat"]


class Touching:
    """It makes a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return Path.touch, (self.made,)


def change(path: Path, **fields: Any) -> None:
    read = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(read | fields))


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    """A model of sentence-transformers."""
    save_sentence_transformer(tmp_path / "model", ["red", "blue", "car", "hat"])
    return tmp_path / "model"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A cross-encoder of transformers."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder = tmp_path / "pairs"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(WORDS), num_labels=1, **sizes)
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def load(folder: Path) -> Any:
    return SentenceTransformerConfig(pretrained=str(folder)).load()


def module_of_its_own(folder: Path, made: Path, kind: str = "own_module.Own") -> None:
    code = f"import pathlib\npathlib.Path({str(made)!r}).touch()\nfrom torch.nn import Identity as Own\n"
    (folder / "own_module.py").write_text(code)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(
    "kind",
    [
        "own_module.Own",
        "subprocess.Popen",
        "sentence_transformers.util.http_get",
        "sentence_transformers.util.misc.importlib",
        "sentence_transformers.sentence_transformer.modules.WordEmbeddings",
        "sentence_transformers_evil.Pooling",
        "sentence_transformers..Pooling",
        None,
    ],
)
def test_a_module_that_is_not_of_sentence_transformers(sentences: Path, tmp_path: Path, kind: Any) -> None:
    module_of_its_own(sentences, tmp_path / "it-ran", kind)
    told = "must be made of sentence-transformers' own modules .*Pooling.*, got "
    with pytest.raises(ValueError, match=f"^encoder.pretrained {sentences} {told}"):
        load(sentences)
    assert not (tmp_path / "it-ran").exists()


def pickled_weights(folder: Path, made: Path) -> None:
    """In place of the safetensors."""
    [weights] = folder.rglob("*.safetensors")
    weights.with_name("pytorch_model.bin").write_bytes(pickle.dumps(Touching(made)))
    weights.unlink()


def index_of_pickles(folder: Path, made: Path) -> None:
    (folder / "part.bin").write_bytes(pickle.dumps(Touching(made)))
    change(folder / "model.safetensors.index.json", metadata={}, weight_map={"a": "part.bin"})


def index_of_elsewhere(folder: Path, made: Path) -> None:
    change(folder / "model.safetensors.index.json", metadata={}, weight_map={"a": "../other.safetensors"})


def adapter(folder: Path, made: Path) -> None:
    change(folder / "adapter_config.json", peft_type="LORA", base_model_name_or_path="/elsewhere")


def attention(folder: Path, made: Path) -> None:
    change(folder / "config.json", below={"attn_implementation": {"": "sdpa", "text": "somebody/kernel"}})


def arguments(folder: Path, made: Path) -> None:
    change(folder / "sentence_bert_config.json", model_args={"trust_remote_code": True})


def kernels(folder: Path, made: Path) -> None:
    change(folder / "sentence_bert_config.json", model_kwargs={"use_kernels": True})


def tokenizer_elsewhere(folder: Path, made: Path) -> None:
    change(folder / "sentence_bert_config.json", tokenizer_name_or_path="/elsewhere")


def activation(folder: Path, made: Path) -> None:
    (folder / "1_Dense").mkdir(exist_ok=True)
    change(folder / "1_Dense" / "config.json", activation_function="torch.utils.cpp_extension.load")


def no_json(folder: Path, made: Path) -> None:
    (folder / "other.json").write_text("{")


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (pickled_weights, r"must hold its weights as safetensors, got pytorch_model\.bin, which can run code when it"),
        (index_of_pickles, r"must hold its weights as safetensors, got 'part\.bin' in model\.safetensors\.index\.json"),
        (index_of_elsewhere, r"must hold its weights as safetensors, got '\.\./other\.safetensors' in "),
        (adapter, "must hold a whole model, got an adapter: merge it into its model and save that"),
        (attention, "must name attention that torch has, got 'somebody/kernel' in config.json"),
        (arguments, "must need no code of its own, got trust_remote_code in sentence_bert_config.json"),
        (
            kernels,
            "must give its packages no arguments but attn_implementation, .*, got 'use_kernels' in sentence_bert",
        ),
        (tokenizer_elsewhere, "must hold all that it needs, got tokenizer_name_or_path '/elsewhere' in sentence_bert"),
        (activation, r"must name activations of torch\.nn, got 'torch\.utils\.cpp_extension\.load' in config.json"),
        (no_json, "must hold JSON in other.json, got: "),
    ],
)
@pytest.mark.parametrize("which", ["sentences", "pairs"])
def test_what_a_folder_may_not_hold(
    which: str, harm: Callable[[Path, Path], None], told: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, made = request.getfixturevalue(which), tmp_path / "it-ran"
    harm(folder, made)
    with pytest.raises(ValueError, match=f"{folder} {told}") as refused:
        load(folder) if which == "sentences" else TransformersRanker(str(folder), "cpu")
    assert str(refused.value).count("\n") == 0
    assert not made.exists()


def test_a_model_of_transformers_that_brings_its_code(pairs: Path, tmp_path: Path) -> None:
    made = tmp_path / "it-ran"
    code = f"import pathlib\npathlib.Path({str(made)!r}).touch()\n"
    (pairs / "modeling_own.py").write_text(code)
    own = {"AutoConfig": "modeling_own.Config", "AutoModelForSequenceClassification": "modeling_own.Model"}
    change(pairs / "config.json", model_type="own", auto_map=own)
    with pytest.raises(ValueError, match=f"{pairs} must hold a model of transformers, got: ") as refused:
        TransformersRanker(str(pairs), "cpu")
    assert str(refused.value).count("\n") == 0
    assert not made.exists()


def test_a_tokenizer_that_brings_its_code(pairs: Path, tmp_path: Path) -> None:
    made = tmp_path / "it-ran"
    (pairs / "own.py").write_text(f"import pathlib\npathlib.Path({str(made)!r}).touch()\n")
    change(pairs / "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", None]})
    TransformersRanker(str(pairs), "cpu")  # which has a tokenizer for this model
    assert not made.exists()


def test_what_is_as_it_should_be(sentences: Path, pairs: Path) -> None:
    (pairs / "training_args.bin").write_bytes(b"nobody reads it")
    (pairs / "openvino").mkdir()
    (pairs / "openvino" / "openvino_model.bin").write_bytes(b"nor that")
    (pairs / "pytorch_model.bin").write_bytes(b"nor that, beside safetensors")
    assert load(sentences).items(["red hat"]).shape == (1, 16)
    scores = TransformersRanker(str(pairs), "cpu")({"text": "red hat"}, candidates_of([1, 2], ["blue", "red"]))
    assert len(scores) == 2
    model_folder.check(pairs, "it")


def test_a_model_of_several_modules(tmp_path: Path, pairs: Path) -> None:
    """With a transformer, pooling and a dense layer, as most are made."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    transformer = Transformer(str(pairs))
    pooling = Pooling(transformer.get_embedding_dimension())
    model = SentenceTransformer(modules=[transformer, pooling, Dense(8, 5), Normalize()], device="cpu")
    model.save(str(tmp_path / "several"))
    found = load(tmp_path / "several").items(["red hat"])
    assert np.allclose(found, model.encode(["red hat"]), atol=1e-6)
