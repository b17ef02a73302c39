"""A byte-level BPE tokenizer, trained on the training text and on nothing else."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from attention_residuals.errors import InputError
from attention_residuals.train.text.corpus import Corpus
from attention_residuals.train.text.extras import require
from attention_residuals.train.text.folders import atomic_folder, cache_folder
from attention_residuals.train.text.progress import Progress
from attention_residuals.train.text.split import Side, Split, side_pieces
from attention_residuals.train.text.tokenizer import END_OF_TEXT, JsonTokenizer

BPE_PREFIX = "bpe:"
LEAST_VOCABULARY = 257  # every byte, and the end of a text
SAMPLE_BYTES = 64 << 20
"""Merges are learned from about this much training text, which bounds the memory of the table of distinct words."""


def bpe_size(name: str) -> int:
    """The vocabulary size of `bpe:SIZE`.

    Raises:
        InputError: a size that is no whole number of at least 257.
    """
    size = name.removeprefix(BPE_PREFIX)
    if not size.isdecimal() or int(size) < LEAST_VOCABULARY:
        raise InputError(
            f"tokenizer {name} has no usable size; give bpe:SIZE with a whole number of at least {LEAST_VOCABULARY}, "
            "for example bpe:4096"
        )
    return int(size)


def stored_bpe(name: str, corpus: Corpus, validation_share: float) -> JsonTokenizer | None:
    """The tokenizer that was trained on this training text before, if it is still in the cache and whole."""
    path = _folder(name, corpus, validation_share) / "tokenizer.json"
    try:
        return JsonTokenizer(name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    except InputError:
        shutil.rmtree(path.parent, ignore_errors=True)  # damaged: it is trained again
        return None


def train_bpe(name: str, corpus: Corpus, split: Split, progress: Progress) -> JsonTokenizer:
    """Train `bpe:SIZE` on the training side and keep it in the cache; a small text may yield a smaller one."""
    library = require("tokenizers", "text", f"the tokenizer {name}")
    backend = library.Tokenizer(library.models.BPE())
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=bpe_size(name),
        special_tokens=[END_OF_TEXT[0]],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_sample(corpus, split, progress), trainer)
    tokenizer = JsonTokenizer(name, backend.to_str())
    with atomic_folder(_folder(name, corpus, split.validation_share)) as folder:
        (folder / "tokenizer.json").write_text(tokenizer.json, encoding="utf-8")
    return tokenizer


def _sample(corpus: Corpus, split: Split, progress: Progress) -> Iterator[str]:
    """Training pieces, all of them or those whose hash is small, so that the choice depends on content alone."""
    limit = min(1.0, SAMPLE_BYTES / max(1, corpus.total_bytes)) * 2**64
    done = 0
    for piece in side_pieces(corpus, split):
        done += len(piece.data)
        progress("training the tokenizer", done, corpus.total_bytes)
        chosen = int.from_bytes(hashlib.blake2b(piece.data, digest_size=8).digest(), "big") < limit
        if piece.side is Side.TRAINING and chosen:
            yield piece.data.decode("utf-8", errors="replace")


def _folder(name: str, corpus: Corpus, validation_share: float) -> Path:
    key = hashlib.sha256(f"{name}\n{corpus.fingerprint}\n{validation_share}".encode()).hexdigest()[:24]
    return cache_folder() / "tokenizers" / key
