"""What can be evaluated: runs, exported models, and all finished runs of a study."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_residuals.errors import InputError
from attention_residuals.experiments.studies.state import RUNS, STUDY, read_plan, run_state
from attention_residuals.experiments.writing import is_export
from attention_residuals.train import TextConfig, Trained, load_trained, read_config
from attention_residuals.train.checkpoints import checkpoints_by_step
from attention_residuals.train.loop import CHECKPOINTS, CONFIG


@dataclass(frozen=True)
class HeldOut:
    """The text that a run was trained on and held some back of; `fingerprint` is what it was, if the run knows."""

    run: Path
    config: TextConfig
    fingerprint: str | None


@dataclass(frozen=True)
class Subject:
    """A folder with one model in it. An exported model does not say what text it was trained on."""

    path: Path
    text: HeldOut | None


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model and its tokenizer as `transformers` wants them, and the step it is of, if that is known."""

    model: Any
    tokenizer: Any
    step: int | None

    @property
    def context_tokens(self) -> int:
        """The longest text the model takes."""
        return self.model.config.max_position_embeddings


def find_subjects(paths: Sequence[Path], step: int | None) -> tuple[list[Subject], list[str]]:
    """The models in these folders, and what is to be said of runs that are left out.

    Raises:
        InputError: a folder that holds no model, a step that a run has no checkpoint of, the same folder twice.
    """
    subjects, notes = list[Subject](), list[str]()
    for path in paths:
        if (path / STUDY).exists():
            finished, unfinished = _runs_of(path)
            if unfinished:
                notes.append(f"{path}: {len(unfinished)} of its runs have not finished and are left out")
            subjects += [_run(run, step) for run in finished]
        elif is_export(path):
            if step is not None:
                raise InputError(f"{path} is an exported model, of one step; leave out --checkpoint, or name the run")
            subjects.append(Subject(path, None))
        else:
            subjects.append(_run(path, step))
    folders = [subject.path.resolve() for subject in subjects]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice is not None:
        raise InputError(f"{twice} is named twice; name each run once")
    return subjects, notes


def load_subject(subject: Subject, step: int | None, device: str) -> Loaded:
    """Bring a model into memory.

    Raises:
        InputError: it is damaged, or cannot be read.
    """
    if subject.text is None:
        return _exported(subject.path, device)
    return as_loaded(load_trained(subject.path, step=step, device=device))


def as_loaded(trained: Trained) -> Loaded:
    """A trained model behind the interfaces of `transformers`."""
    from attention_residuals.hf.export import wrap
    from attention_residuals.hf.tokenizer import fast_tokenizer

    model = wrap(trained)
    return Loaded(model, fast_tokenizer(trained.tokenizer, model.config.max_position_embeddings), trained.step)


def held_out(run: Path) -> HeldOut:
    """The text of a run.

    Raises:
        InputError: it is no run folder.
    """
    config = read_config(run)
    about = json.loads((run / CONFIG).read_bytes()).get("data", {})
    return HeldOut(run, config.text, about.get("fingerprint"))


def _run(path: Path, step: int | None) -> Subject:
    text = held_out(path)
    steps = checkpoints_by_step(path / CHECKPOINTS)
    if not steps:
        raise InputError(f"{path} has no checkpoint, so its weights are gone; train with checkpoint_every_steps=N")
    if step is not None and step not in steps:
        raise InputError(f"{path} has no checkpoint of step {step}; there are {', '.join(map(str, steps))}")
    return Subject(path, text)


def _runs_of(study: Path) -> tuple[list[Path], list[Path]]:
    """The runs of a study that have finished, in the order of its plan, and those that have not."""
    runs = [study / RUNS / plan["run"]["name"] for plan in read_plan(study)]
    finished = [run for run in runs if run_state(run).final is not None]
    if not finished:
        raise InputError(f"{study} has no finished run yet; go on with the study first")
    return finished, [run for run in runs if run not in finished]


def _exported(path: Path, device: str) -> Loaded:
    from transformers import AutoTokenizer

    from attention_residuals.hf.exported import load_exported

    model: Any = load_exported(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as error:  # the library raises nothing narrower
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path} has no tokenizer that can be read ({said}); export the run again") from error
    return Loaded(model.to(device), tokenizer, None)
