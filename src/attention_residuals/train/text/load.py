"""From a few names to tokens ready for training: the one way in."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attention_residuals.errors import InputError, require_positive
from attention_residuals.train.text.bpe import BPE_PREFIX, bpe_size, stored_bpe, train_bpe
from attention_residuals.train.text.cache import (
    DamagedCacheError,
    TokenCache,
    open_cache,
    remove_cache,
    tokens_folder,
    write_header,
)
from attention_residuals.train.text.corpus import Corpus, survey
from attention_residuals.train.text.data import TokenData
from attention_residuals.train.text.encode import encode_corpus
from attention_residuals.train.text.folders import atomic_folder
from attention_residuals.train.text.progress import Progress, silent
from attention_residuals.train.text.sources import open_sources
from attention_residuals.train.text.split import Split, require_share, split_corpus
from attention_residuals.train.text.tokenizer import ByteTokenizer, Tokenizer, read_tokenizer

WORTH_PROCESSES_BYTES = 64 << 20
"""Less text is done before worker processes have started."""


@dataclass(frozen=True)
class TextConfig:
    """Which text, and how it becomes tokens.

    `paths`: files, folders, `.jsonl` and `.parquet` tables, `hf:NAME`, `hf:NAME:CONFIG`, `english`; none: the Python
    standard library. `tokenizer`: `bytes`, `bpe:SIZE` (trained on the training text) or a tokenizer's JSON file.
    `text_key`: where tables keep their text. `workers`: processes; 1 is this process alone, 0 as many as there are
    cores once the text is large enough to repay starting them. `hub_limit_mb`: megabytes of text to fetch of each
    dataset of the hub, which may be larger than the disk; 0 is all of it.

    Raises:
        InputError: a field outside its range.
    """

    paths: tuple[str, ...] = ()
    tokenizer: str = "bytes"
    sequence_tokens: int = 256
    validation_share: float = 0.05
    text_key: str = "text"
    workers: int = 0
    hub_limit_mb: int = 0

    def __post_init__(self) -> None:
        require_positive(self, "sequence_tokens")
        require_share(self.validation_share)
        for name in ("workers", "hub_limit_mb"):
            if getattr(self, name) != 0:
                require_positive(self, name)
        if self.tokenizer.startswith(BPE_PREFIX):
            bpe_size(self.tokenizer)


def load_text(config: TextConfig, progress: Progress | None = None, *, tokenizer: Tokenizer | None = None) -> TokenData:
    """Find, check, split and tokenise the text, or reuse the tokens of an earlier call.

    A `tokenizer` that is at hand takes the place of the one that the config names.

    The text is read as a stream, several times over; memory does not grow with it, but for some 40 bytes a document
    and the hashes of the lines that validation candidates share. Tokens go to the cache and are mapped from there.

    Raises:
        InputError: whatever is wrong with paths, text, tokenizer or split, in one sentence.
    """
    return _Loading(config, progress or silent, tokenizer).data()


class _Loading:
    """One call of `load_text`: what it needs is made when it is needed, and the split at most once."""

    def __init__(self, config: TextConfig, progress: Progress, given: Tokenizer | None):
        self.config, self.progress, self.given = config, progress, given

    @cached_property
    def corpus(self) -> Corpus:
        return survey(open_sources(self.config.paths, self.config.text_key, self.config.hub_limit_mb), self.progress)

    @cached_property
    def split(self) -> Split:
        return split_corpus(self.corpus, self.config.validation_share, workers=self.workers, progress=self.progress)

    @cached_property
    def workers(self) -> int:
        if self.config.workers:
            return self.config.workers
        return (os.cpu_count() or 1) if self.corpus.total_bytes >= WORTH_PROCESSES_BYTES else 1

    @cached_property
    def tokenizer(self) -> Tokenizer:
        name = self.config.tokenizer
        if self.given is not None:
            return self.given
        if name == ByteTokenizer.name:
            return ByteTokenizer()
        if not name.startswith(BPE_PREFIX):
            return read_tokenizer(Path(name))
        stored = stored_bpe(name, self.corpus, self.config.validation_share)
        return stored or train_bpe(name, self.corpus, self.split, self.progress)

    def data(self) -> TokenData:
        tokenizer, corpus = self.tokenizer, self.corpus
        cache = self._cache()
        return TokenData(
            cache.training,
            cache.validation,
            tokenizer,
            self.config.sequence_tokens,
            corpus.fingerprint,
            cache.about["unigram_entropy"],
            self._about(cache),
        )

    def _cache(self) -> TokenCache:
        folder = tokens_folder(self.corpus, self.tokenizer, self.config.validation_share)
        if folder.exists():
            try:
                return open_cache(folder, self.tokenizer)
            except DamagedCacheError:
                remove_cache(folder)
        with atomic_folder(folder) as partial:
            write_header(partial, self.tokenizer, self._encode(partial))
        try:
            return open_cache(folder, self.tokenizer)
        except DamagedCacheError as error:
            raise InputError(f"the cache cannot be kept whole ({error}); check the disk it is on") from error

    def _encode(self, folder: Path) -> dict[str, Any]:
        # Bytes are tokens already; sending them to other processes would only cost.
        workers = 1 if isinstance(self.tokenizer, ByteTokenizer) and not self.config.workers else self.workers
        return encode_corpus(self.corpus, self.split, self.tokenizer, folder, workers=workers, progress=self.progress)

    def _about(self, cache: TokenCache) -> dict[str, Any]:
        return {
            "source": ", ".join(source.name for source in self.corpus.sources),
            "documents": len(self.corpus),
            "fingerprint": self.corpus.fingerprint,
            "tokenizer": {"name": self.tokenizer.name, "fingerprint": self.tokenizer.fingerprint},
            "vocab_size": self.tokenizer.vocab_size,
            **cache.about,
        }
