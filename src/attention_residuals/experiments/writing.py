"""Text from a trained model, as it is drawn."""

import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.inference import CHUNK_TOKENS, Sampling, stream
from attention_residuals.models import Decoder
from attention_residuals.train import load_trained, require_device
from attention_residuals.train.loop import CONFIG

TOKENS = 200
"""New tokens unless told otherwise, if the context has room for them."""

UNFINISHED = "\ufffd"
"""What the first bytes of a character decode to as long as the rest is missing."""


@dataclass(frozen=True)
class TextRequest:
    """What text is asked for.

    Args:
        prompts: texts to go on from.
        tokens: new tokens at most; None: `TOKENS`, or as many as the context has room for.
        sampling: how they are drawn.
        context_tokens: the longest that prompt and new tokens may be; None: the length the model was trained with.
        chunk_tokens: prompt tokens taken in at once.
        step: of the run's checkpoints; None: the latest.
        device: where to run.
    """

    prompts: tuple[str, ...]
    tokens: int | None = None
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.8))
    context_tokens: int | None = None
    chunk_tokens: int = CHUNK_TOKENS
    step: int | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Writer:
    """A model and its way from text to tokens and back."""

    model: Decoder
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    separator: int | None
    context_tokens: int


def write_texts(path: Path, request: TextRequest, show: Callable[[str], object]) -> None:
    """Go on from each prompt with the model of a run, or of a folder that `attnres export` wrote.

    `show` is given the text piece by piece: of one prompt as it is drawn, of several one after another at the end.

    Raises:
        InputError: anything wrong with the folder or the request, before any text.
    """
    require_device(request.device)
    writer = load_writer(path, request)
    prompts = [_encoded(writer, text, n) for n, text in enumerate(request.prompts)]
    columns = stream(
        writer.model,
        prompts,
        tokens=_tokens(writer, request, prompts),
        sampling=request.sampling,
        stop_token=writer.separator,
        context_tokens=request.context_tokens or writer.context_tokens,
        chunk_tokens=request.chunk_tokens,
    )
    if len(prompts) == 1:
        show(request.prompts[0])
        for piece in _pieces(writer, (column[0] for column in columns)):
            show(piece)
        show("\n")
        return
    for n, (text, drawn) in enumerate(zip(request.prompts, zip(*columns, strict=True), strict=True)):
        show(f"--- prompt {n}\n{text}{''.join(_pieces(writer, drawn))}\n")


def load_writer(path: Path, request: TextRequest) -> Writer:
    """The model and tokenizer in a folder, whichever kind of folder it is.

    Raises:
        InputError: it is neither a run nor an exported model, or is damaged.
    """
    if is_export(path):
        if request.step is not None:
            raise InputError(f"{path} is an exported model, of one step; leave out --checkpoint, or name the run")
        return _exported(path, request.device)
    trained = load_trained(path, step=request.step, device=request.device)
    tokenizer = trained.tokenizer
    return Writer(
        trained.model,
        lambda text: tokenizer.encode_batch([text.encode()])[0].tolist(),
        tokenizer.decode,
        tokenizer.separator,
        trained.config.text.sequence_tokens,
    )


def is_export(path: Path) -> bool:
    try:
        facts = json.loads((path / CONFIG).read_bytes())
    except (OSError, ValueError):
        return False  # said better by what reads runs
    return isinstance(facts, dict) and "model_type" in facts


def _exported(path: Path, device: str) -> Writer:
    if importlib.util.find_spec("transformers") is None:
        raise InputError(f"{path} is a folder for transformers: pip install 'attention-residuals[hf]', or name the run")
    from transformers import AutoTokenizer

    from attention_residuals.hf.exported import load_exported

    model = load_exported(path)
    decoder = model.model.to(device)
    assert isinstance(decoder, Decoder)
    tokenizer = AutoTokenizer.from_pretrained(path)
    return Writer(
        decoder,
        lambda text: tokenizer.encode(text, add_special_tokens=False),
        lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True),
        tokenizer.eos_token_id,
        model.config.max_position_embeddings,
    )


def _encoded(writer: Writer, text: str, number: int) -> Int[Tensor, "_"]:
    tokens = writer.encode(text)
    if not tokens:
        raise InputError(f"prompt {number} is empty; give at least one character")
    return torch.tensor(tokens, dtype=torch.int64)


def _tokens(writer: Writer, request: TextRequest, prompts: Sequence[Tensor]) -> int:
    """New tokens to ask for; at least 1, for `stream` to refuse where there is no room."""
    if request.tokens is not None:
        return request.tokens
    room = (request.context_tokens or writer.context_tokens) - max(map(len, prompts))
    return max(1, min(TOKENS, room))


def _pieces(writer: Writer, tokens: Iterator[int | None] | Sequence[int | None]) -> Iterator[str]:
    """The text of the tokens, piece by piece, no character before it is whole."""
    drawn: list[int] = []
    shown = ""
    for token in tokens:
        if token is None or token == writer.separator:
            break
        drawn.append(token)
        text = writer.decode(drawn)
        if text.startswith(shown) and not text.endswith(UNFINISHED):
            yield text[len(shown) :]
            shown = text
    yield writer.decode(drawn)[len(shown) :]
