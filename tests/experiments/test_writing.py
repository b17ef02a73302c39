"""Text from a run by the command: streamed, whole characters only, and one sentence for what is wrong."""

import json
import shutil
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from attention_residuals import InputError, cli
from attention_residuals.experiments.single import resume
from attention_residuals.experiments.writing import TextRequest, Writer, _pieces, load_writer, write_texts
from attention_residuals.inference import GREEDY, Sampling, generate
from attention_residuals.train import load_trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps on a text of few letters, in two checkpoints."""
    folder = tmp_path_factory.mktemp("writing")
    (folder / "text.txt").write_text("abc def ghi\n" * 300)
    changes = ["steps=4", "checkpoint_every_steps=2", "text.sequence_tokens=64", f'text.paths=["{folder}/text.txt"]']
    changes += ["evaluation_tokens=64", "final_evaluation_tokens=64", "text.validation_share=0.2"]
    assert cli.main(["train", "block", *changes, "--out", str(folder / "run")]) == 0
    return folder / "run"


def texts(path: Path, *prompts: str, **options) -> list[str]:
    pieces: list[str] = []
    write_texts(path, TextRequest(prompts, **{"sampling": GREEDY, **options}), pieces.append)
    return pieces


def test_the_text_is_what_generate_gives(run: Path) -> None:
    trained = load_trained(run)
    prompt = torch.tensor(list(b"abc d"))
    (drawn,) = generate(trained.model, [prompt], tokens=9, stop_token=0)
    pieces = texts(run, "abc d", tokens=9)
    assert "".join(pieces) == "abc d" + trained.tokenizer.decode(drawn.tolist()) + "\n"
    assert len(pieces) > 5, "it comes piece by piece"


def test_several_prompts_come_one_after_another(run: Path) -> None:
    together = "".join(texts(run, "abc d", "gh", tokens=9))
    alone = ["".join(texts(run, prompt, tokens=9)) for prompt in ("abc d", "gh")]
    assert together == f"--- prompt 0\n{alone[0]}--- prompt 1\n{alone[1]}"


def test_as_many_tokens_as_the_context_has_room_for(run: Path) -> None:
    text = "".join(texts(run, "abc d", sampling=Sampling(seed=1)))
    assert len(text.encode("utf-8", errors="replace")) >= 20
    assert len(load_writer(run, TextRequest(())).encode("abc d")) == 5
    longer = "".join(texts(run, "x" * 100, context_tokens=120))
    assert longer.startswith("x" * 100)


def test_another_checkpoint_writes_another_text(run: Path) -> None:
    one, other = (load_writer(run, TextRequest((), step=step)) for step in (2, 4))
    assert not torch.equal(one.model.embedding.weight, other.model.embedding.weight)


def test_a_character_is_shown_when_it_is_whole() -> None:
    def decode(tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    writer = Writer(None, list, decode, separator=0, context_tokens=9)  # pyright: ignore[reportArgumentType]

    def pieces(*tokens: int | None) -> list[str]:
        return [piece for piece in _pieces(writer, tokens) if piece]

    assert pieces(97, 0xC3, 0xA9, 98) == ["a", "é", "b"]
    assert pieces(97, 0xC3) == ["a", "\ufffd"]  # it never becomes whole
    assert pieces(97, 0, 98) == ["a"] and pieces(97, None) == ["a"]
    assert pieces(*"äöü€😀".encode()) == list("äöü€😀")


def test_tokens_come_while_they_are_drawn() -> None:
    def drawn() -> Iterator[int]:
        yield 97
        raise AssertionError("nothing more was asked for")

    writer = Writer(None, list, lambda tokens: bytes(tokens).decode(), None, 9)  # pyright: ignore[reportArgumentType]
    assert next(_pieces(writer, drawn())) == "a"


def test_an_exported_folder_writes_the_same(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    assert cli.main(["export", str(run), str(tmp_path / "out")]) == 0
    assert texts(tmp_path / "out", "abc d", tokens=9) == texts(run, "abc d", tokens=9)
    assert cli.main(["generate", str(tmp_path / "out"), "--prompt", "a", "--checkpoint", "2"]) == 2
    assert "is an exported model, of one step" in capsys.readouterr().err


def test_standard_input_can_be_the_prompt(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.read", lambda: "abc d", raising=False)
    assert cli.main(["generate", str(run), "--prompt", "-", "--tokens", "3", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == "".join(texts(run, "abc d", tokens=3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", ""], "prompt 0 is empty"),
        (["--prompt", "a", "--prompt", "x" * 65], "a prompt of 65 tokens and 1 new ones do not fit a context of 64"),
        (["--prompt", "a", "--tokens", "64"], "a prompt of 1 tokens and 64 new ones do not fit a context of 64"),
        (["--prompt", "a", "--tokens", "0"], "tokens is 0"),
        (["--prompt", "a", "--temperature", "-1"], "temperature is -1.0"),
        (["--prompt", "a", "--chunk", "0"], "chunk_tokens is 0"),
        (["--prompt", "a", "--checkpoint", "3"], "has no checkpoint of step 3; there are 2, 4"),
        (["--prompt", "a", "--device", "toaster"], "device toaster cannot be used here"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["generate", str(run), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and message in printed.err and printed.err.count("\n") == 1


def test_a_token_outside_the_vocabulary_is_named(run: Path) -> None:
    """As with a tokenizer that is larger than the model."""
    writer = load_writer(run, TextRequest(()))
    with pytest.raises(InputError, match="token 0 of prompt 0 is 300; the model's tokens run from 0 to 255"):
        generate(writer.model, [torch.tensor([300])], tokens=1)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("type", "Layers", "saved with model.residual.block.type = 'Sublayers', .* says 'Layers'"),
        ("count", 2, "saved with model.residual.block.count = 4, .* says 2"),
    ],
)
def test_another_block_in_the_config_is_refused(
    field: str, value: object, message: str, run: Path, tmp_path: Path
) -> None:
    """Its tensors would fit: blocks of either size have the same parameters."""
    copied = tmp_path / "copied"
    shutil.copytree(run, copied)
    facts = json.loads((copied / "config.json").read_text())
    block = facts["config"]["model"]["residual"]["block"]
    block[field] = value
    (copied / "config.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=message):
        texts(copied, "a")
    (copied / "validation.json").unlink()
    with pytest.raises(InputError, match=message):
        resume(copied, Console(file=StringIO()))
