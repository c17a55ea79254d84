"""The tiny policy: a word-level tokenizer and a stock Qwen3 model of about half a million parameters.

Saved and loaded as an ordinary Hugging Face checkpoint. How it is warm-started is in `forkgym/learn/warmstart.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from forkgym.core.text import Vocabulary
from forkgym.policy.chat import EOT, OBS, PAD, UNK

__all__ = [
    "build_model",
    "build_tokenizer",
    "entity_groups",
    "load_checkpoint",
    "save_checkpoint",
    "vocabulary_digest",
]

_VOCABULARY_FILE = "vocabulary.json"


class _VocabularyRecord(msgspec.Struct, forbid_unknown_fields=True):
    """What a checkpoint remembers of its vocabulary."""

    digest: str
    words: int
    entities: dict[str, int]


def vocabulary_digest(vocabulary: Vocabulary) -> str:
    """BLAKE2b-128 of the words and entities in order: equal digests mean equal token ids."""
    entities = [[kind, *names] for kind, names in vocabulary.entities.items()]
    data = msgspec.json.encode([list(vocabulary.words), entities])
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def build_tokenizer(vocabulary: Vocabulary) -> Any:
    """A word-level tokenizer: words split at spaces, each entity name and each newline one token.

    Ids: control tokens, newline, words in order, entities in order of types and names. Texts whose words are separated
    by single spaces survive the round trip exactly (a newline counts as a word); unknown words become ``<unk>``.

    Args:
        vocabulary: Words and entities; no name may occur twice.

    Returns:
        A ``PreTrainedTokenizerFast``.

    Raises:
        ValueError: A name occurs twice, is empty, or has spaces at its ends.
    """
    control = [PAD, EOT, OBS, UNK, "\n"]
    words = [word for word in vocabulary.words if word not in control]
    entities = [name for names in vocabulary.entities.values() for name in names]
    seen: set[str] = set()
    for name in control + words + entities:
        if name in seen:
            raise ValueError(f"{name!r} occurs twice in the vocabulary: every name needs one meaning and one token")
        if not name or (name != "\n" and name != name.strip()):
            raise ValueError(f"{name!r} is not a name: names are not empty and have no spaces at their ends")
        seen.add(name)
    spaced = [word for word in words if len(word.split()) > 1]
    if spaced:
        raise ValueError(f"words must not contain spaces (entities may): {spaced[:3]}")
    table = {name: index for index, name in enumerate(control + words)}
    tokenizer = Tokenizer(models.WordLevel(table, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in control[:4]])
    tokenizer.add_tokens([AddedToken("\n", normalized=False)])
    tokenizer.add_tokens([AddedToken(name, single_word=True, normalized=False) for name in entities])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOT,
        unk_token=UNK,
        additional_special_tokens=[OBS],
        clean_up_tokenization_spaces=False,
    )


def entity_groups(tokenizer: Any, vocabulary: Vocabulary) -> list[list[int]]:
    """Token ids of each entity type: the sets within which names may be permuted (see the warm start)."""
    return [tokenizer.convert_tokens_to_ids(list(names)) for names in vocabulary.entities.values()]


def build_model(
    vocab_size: int,
    *,
    hidden_size: int = 128,
    layers: int = 2,
    heads: int = 4,
    window: int = 3,
    max_positions: int = 512,
    seed: int = 0,
) -> Any:
    """A stock Qwen3 causal language model whose first layer sees a window of three tokens only.

    The narrow layer gives every token its two predecessors, from which copying is learnt within a minute. Tied
    embeddings, standard deviation ``0.7 / √d`` at the start, float32. Qwen3 rather than Qwen2, because `AutoTokenizer`
    (transformers 5.24) replaces any tokenizer that lies beside a Qwen2 model by Qwen2's own.

    Args:
        vocab_size: V.
        hidden_size: d, a multiple of ``2 · heads``.
        layers: Number of layers, the narrow one included; at least 2.
        heads: Attention heads.
        window: Tokens the first layer sees, the current one included.
        max_positions: Longest trajectory in tokens.
        seed: Seed of the initial weights.

    Returns:
        A ``Qwen3ForCausalLM`` in training mode.
    """
    if layers < 2 or hidden_size % (2 * heads):
        raise ValueError(
            f"needs at least 2 layers and hidden_size a multiple of 2·heads, got {layers}, {hidden_size}, {heads}"
        )
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden_size // heads,
        tie_word_embeddings=True,
        max_position_embeddings=max_positions,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        initializer_range=0.7 / hidden_size**0.5,
        use_sliding_window=True,
        sliding_window=window,
        max_window_layers=0,
        layer_types=["sliding_attention"] + ["full_attention"] * (layers - 1),
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars for a file of two megabytes."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def save_checkpoint(path: str | Path, model: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    """Write model, tokenizer and the vocabulary's digest as a Hugging Face checkpoint directory.

    Args:
        path: Directory; made if it is missing.
        model: The model; float32 weights.
        tokenizer: As made by `build_tokenizer`.
        vocabulary: What the tokenizer was made from.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    with _quiet():
        model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    record = _VocabularyRecord(
        digest=vocabulary_digest(vocabulary),
        words=len(vocabulary.words),
        entities={kind: len(names) for kind, names in vocabulary.entities.items()},
    )
    (path / _VOCABULARY_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def load_checkpoint(path: str | Path, vocabulary: Vocabulary | None = None) -> tuple[Any, Any]:
    """Load a checkpoint and, where a vocabulary is given, prove that its token ids mean the same.

    Args:
        path: Directory written by `save_checkpoint`.
        vocabulary: The environment's vocabulary, or ``None`` to skip the check.

    Returns:
        Model (evaluation mode, float32) and tokenizer.

    Raises:
        FileNotFoundError: The directory is no such checkpoint.
        ValueError: The vocabularies differ.
    """
    path = Path(path)
    record_path = path / _VOCABULARY_FILE
    if not record_path.is_file():
        raise FileNotFoundError(f"{path} is not a tiny-policy checkpoint: it has no {_VOCABULARY_FILE}")
    record = msgspec.json.decode(record_path.read_bytes(), type=_VocabularyRecord)
    if vocabulary is not None and vocabulary_digest(vocabulary) != record.digest:
        entities = {kind: len(names) for kind, names in vocabulary.entities.items()}
        raise ValueError(
            f"the checkpoint in {path} was made for another vocabulary ({record.words} words, entities "
            f"{record.entities}) than the environment's ({len(vocabulary.words)} words, entities {entities}): its "
            "token ids would mean other words. Make the environment with the options the checkpoint was made for, or "
            "make a new checkpoint with `forkgym warmstart`"
        )
    with _quiet():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    return model, tokenizer
