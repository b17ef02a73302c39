"""A run as a folder that `transformers` loads: weights, config, tokenizer, and a manifest of them all."""

import shutil
from pathlib import Path

from safetensors import SafetensorError
from transformers import GenerationConfig

from attention_residuals.errors import InputError
from attention_residuals.hf.modeling import AttnResForCausalLM, wrap_decoder
from attention_residuals.hf.tokenizer import fast_tokenizer
from attention_residuals.train import Trained, load_trained
from attention_residuals.train.checkpoint_files import DEBRIS
from attention_residuals.train.durable import explain_refusals, sync_file, sync_folder
from attention_residuals.train.manifests import MANIFEST, write_manifest


def export(run: Path, out: Path, *, step: int | None = None) -> int:
    """Write the model of a run, from its latest whole checkpoint or that of `step`; returns the step.

    `out` appears by one rename, when everything in it is on the disk.

    Raises:
        InputError: `out` exists or cannot be written, or the run cannot be read (see `load_trained`).
    """
    if out.exists():
        raise InputError(f"{out} exists; name another folder, or remove it first")
    trained = load_trained(run, step=step)
    temporary = out.with_name(DEBRIS + out.name)
    with explain_refusals(out, "make room there, or name another folder"):
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)  # left by an export that was killed
        try:
            _write(trained, temporary)
            temporary.rename(out)
            sync_folder(out.parent)
        except SafetensorError as error:
            raise InputError(f"{out} cannot be written ({error}); make room there, or name another folder") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return trained.step


def wrap(trained: Trained) -> AttnResForCausalLM:
    """The model of a run behind the interfaces of `transformers`, not a copy; its context is as long as in training."""
    tokens, separator = trained.config.text.sequence_tokens, trained.tokenizer.separator
    model = wrap_decoder(
        trained.model, max_position_embeddings=tokens, eos_token_id=separator, pad_token_id=separator, dtype="float32"
    )
    model.generation_config = GenerationConfig(eos_token_id=separator, pad_token_id=separator)
    return model


def _write(trained: Trained, folder: Path) -> None:
    model = wrap(trained)
    model.save_pretrained(folder)
    fast_tokenizer(trained.tokenizer, model.config.max_position_embeddings).save_pretrained(folder)
    files = sorted(path.name for path in folder.iterdir())
    write_manifest(folder, files)
    for name in (*files, MANIFEST):
        sync_file(folder / name)
    sync_folder(folder)
