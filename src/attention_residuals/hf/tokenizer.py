"""The tokenizer of a run as a fast tokenizer of `transformers`, token for token the same."""

from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from attention_residuals.errors import InputError
from attention_residuals.train.text import ByteTokenizer, JsonTokenizer, Tokenizer


def fast_tokenizer(tokenizer: Tokenizer, max_tokens: int) -> PreTrainedTokenizerFast:
    """The same tokens for the same text; no token is added, and the separator ends texts and pads batches.

    Names of special tokens that stand in a text are ordinary text (`split_special_tokens`), as in training: no text can
    forge the end of one.

    Args:
        tokenizer: that of a run. With bytes the separator is NUL, which the text of a run never holds.
        max_tokens: the longest text the model was trained with.
    """
    if isinstance(tokenizer, JsonTokenizer):
        backend = _backend(tokenizer.json)
    elif isinstance(tokenizer, ByteTokenizer):
        backend = byte_backend()
    else:
        raise InputError(
            f"tokenizer {tokenizer.name} has no counterpart in transformers; train with bytes, bpe or JSON"
        )
    separator = backend.id_to_token(tokenizer.separator)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=separator,
        pad_token=separator,
        model_max_length=max_tokens,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="left",  # for generation; training fills up where its collator says
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
    )


def byte_backend() -> Any:
    """256 tokens, each the byte of its number: no words, no merges, no normalisation."""
    vocabulary = {character: byte for byte, character in byte_characters().items()}
    backend = Backend(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return backend


def byte_characters() -> dict[int, str]:
    """The character by which byte-level tokenizers write each byte: itself if it can be seen, else one from 256 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


def _backend(json: str) -> Any:
    """As training used it: see `JsonTokenizer`."""
    backend: Any = Backend.from_str(json)
    backend.no_truncation()
    backend.no_padding()
    backend.post_processor = None  # it could add tokens that training never saw
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None
    return backend
