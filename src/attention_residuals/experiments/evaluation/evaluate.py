"""Asking models: from folders to `evaluation.json` in each of them, and a report of them all."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from attention_residuals.errors import InputError, is_count
from attention_residuals.experiments.evaluation.harness import (
    LOCAL_TASKS,
    local_task,
    muted,
    named_tasks,
    require_lm_eval,
    score,
)
from attention_residuals.experiments.evaluation.items import (
    MOST_WINDOW_TOKENS,
    ItemSizes,
    Questions,
    make_questions,
)
from attention_residuals.experiments.evaluation.scores import (
    EVALUATION,
    Measure,
    level,
    most_telling,
    read_evaluation,
)
from attention_residuals.experiments.evaluation.subjects import (
    HeldOut,
    Loaded,
    Subject,
    as_loaded,
    find_subjects,
    held_out,
    load_subject,
)
from attention_residuals.experiments.evaluation.table import LISTING, write_evaluation_report
from attention_residuals.experiments.loading import load_data
from attention_residuals.experiments.printing import say
from attention_residuals.train import RunFolder, TextConfig, TokenData, Trained, require_absent, require_device

BATCH_SEQUENCES = 16

ITEMS = 200
"""Questions of each local task."""


@dataclass(frozen=True)
class EvaluationRequest:
    """What is asked of which models.

    Args:
        paths: folders of runs, of exported models, of studies.
        tasks: names of `lm-eval`, YAML files, or names of local tasks; none: all local tasks.
        limit: questions of each task at most.
        step: of the runs' checkpoints; None: the latest that is whole.
        text_of: the run whose held-out text exported models are asked about; they do not know their own.
        device: where to run.
        batch_sequences: sequences computed at once; scores do not depend on it.

    Raises:
        InputError: no folder, or a count below 1.
    """

    paths: tuple[Path, ...]
    tasks: tuple[str, ...] = ()
    limit: int | None = None
    step: int | None = None
    text_of: Path | None = None
    device: str = "cpu"
    batch_sequences: int = BATCH_SEQUENCES

    def __post_init__(self) -> None:
        if not self.paths:
            raise InputError("no folder is named; name a run, an exported model or a study")
        for name in ("limit", "batch_sequences"):
            value = getattr(self, name)
            if value is not None and not is_count(value):
                raise InputError(f"{name} is {value}; it must be a whole number of at least 1")

    @property
    def local_tasks(self) -> tuple[str, ...]:
        """Tasks made from held-out text."""
        return tuple(name for name in self.tasks if name in LOCAL_TASKS) if self.tasks else LOCAL_TASKS

    @property
    def named_tasks(self) -> tuple[str, ...]:
        """Tasks that `lm-eval` knows."""
        return tuple(name for name in self.tasks if name not in LOCAL_TASKS)


def evaluate(request: EvaluationRequest, out: Path, console: Console) -> Path:
    """Ask every model, write `evaluation.json` into its folder, and a report of all into `out`; returns its page.

    Scores of other tasks that a folder has already stay there if they are of the same step.

    Raises:
        InputError: anything wrong with what was asked, before any model is asked; or damage of one model.
    """
    require_lm_eval()
    require_device(request.device)
    subjects, notes = find_subjects(request.paths, request.step)
    other = None if request.text_of is None else held_out(request.text_of)
    texts = [subject.text or other for subject in subjects]
    if request.local_tasks and None in texts:
        raise InputError(
            f"{subjects[texts.index(None)].path} is an exported model and does not say which text was held out; name "
            "its run with --text-of RUN, or give --tasks of lm-eval"
        )
    named = named_tasks(request.named_tasks) if request.named_tasks else []
    require_absent(out)
    for subject in subjects:
        read_evaluation(subject.path)  # what is damaged is told before hours of work, not after
    desk = _Desk(request, console)
    for text in texts:
        if text is not None and request.local_tasks:
            desk.fetch(text)
    folder = RunFolder.create(out)
    folder.write_json(LISTING, {"runs": [str(subject.path.resolve()) for subject in subjects]})
    for note in notes:
        say(console, note)
    for subject, text in zip(subjects, texts, strict=True):
        desk.ask(subject, text, named)
    return write_evaluation_report(out)


def evaluation(trained: Trained, data: TokenData) -> dict[str, Any]:
    """The local tasks, as an analysis of a study: what `evaluation.json` holds.

    Raises:
        InputError: `lm-eval` is not installed, or the held-out text has no question in it.
    """
    require_lm_eval()
    loaded = as_loaded(trained)
    questions = _questions(data, loaded.context_tokens, LOCAL_TASKS)
    return _asked(loaded, questions, data, [], None, BATCH_SEQUENCES, lambda done, total: None)


class _Desk:
    """Asks one model after the other; texts and questions that several have in common are prepared once."""

    def __init__(self, request: EvaluationRequest, console: Console):
        self._request, self._console = request, console
        self._data: dict[TextConfig, TokenData] = {}
        self._questions: dict[tuple[TextConfig, int], list[Questions]] = {}

    def fetch(self, text: HeldOut) -> TokenData:
        """The text itself, which must be what it was when the run was trained: else its split is another one."""
        if text.config not in self._data:
            self._data[text.config] = load_data(text.config, self._console)
        data = self._data[text.config]
        if text.fingerprint not in (None, data.fingerprint):
            raise InputError(
                f"{text.run} was trained on another text (fingerprint {text.fingerprint}, here {data.fingerprint}), so "
                "what it held out is not known; bring that text back, or give --tasks of lm-eval"
            )
        return data

    def ask(self, subject: Subject, text: HeldOut | None, named: Sequence[Any]) -> None:
        request, path = self._request, subject.path
        loaded = load_subject(subject, request.step, request.device)
        data, questions = None, list[Questions]()
        if text is not None and request.local_tasks:
            data, questions = self._prepared(text, loaded.context_tokens)
        with _bar(self._console, path.name) as advance:
            found = _asked(loaded, questions, data, named, request.limit, request.batch_sequences, advance)
        earlier = read_evaluation(path)
        if earlier is not None and earlier["step"] == found["step"]:
            found["tasks"] = {**earlier["tasks"], **found["tasks"]}
            found["text"] = found["text"] or earlier["text"]
        RunFolder(path).write_json(EVALUATION, found)
        say(self._console, f"{path}: {_in_words(found['tasks'])}")

    def _prepared(self, text: HeldOut, context_tokens: int) -> tuple[TokenData, list[Questions]]:
        data, key = self.fetch(text), (text.config, context_tokens)
        if key not in self._questions:
            self._questions[key] = _questions(data, context_tokens, self._request.local_tasks)
        return data, self._questions[key]


def _questions(data: TokenData, context_tokens: int, wanted: Sequence[str]) -> list[Questions]:
    """Those of the local tasks `wanted` that the held-out text has something for."""
    window = min(data.sequence_tokens, context_tokens, MOST_WINDOW_TOKENS)
    found = [questions for questions in make_questions(data, ItemSizes(ITEMS, window)) if questions.documents]
    kept = [questions for questions in found if questions.name in wanted]
    if not kept:
        raise InputError(
            f"the held-out text has no question for {', '.join(wanted)} in {len(data.validation.tokens):,} tokens; "
            "give more text, documents as long as a sequence, or --tasks of lm-eval"
        )
    return kept


def _asked(
    loaded: Loaded,
    questions: Sequence[Questions],
    data: TokenData | None,
    named: Sequence[Any],
    limit: int | None,
    batch_sequences: int,
    advance: Callable[[int, int], None],
) -> dict[str, Any]:
    """Everything that `evaluation.json` says of one model."""
    from attention_residuals.experiments.evaluation.scorer import Scorer

    with muted():
        scorer = Scorer(loaded.model, loaded.tokenizer, batch_sequences, advance)
        tasks = score(scorer, [*map(local_task, questions), *named], limit)
    for one in questions:
        tasks[one.name]["dropped"] = one.dropped
    about = None
    if data is not None:
        about = {"fingerprint": data.fingerprint, "source": data.about.get("source")}
    return {
        "step": loaded.step,
        "context_tokens": loaded.context_tokens,
        "text": about,
        "lm_eval": version("lm-eval"),
        "tasks": {name: {**record, "limit": limit} for name, record in tasks.items()},
    }


@contextmanager
def _bar(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(name, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _in_words(tasks: dict[str, Any]) -> str:
    """One measure of each task that is not part of a group."""
    found = []
    for measure in most_telling(Measure(name, key) for name, record in tasks.items() for key in record["metrics"]):
        if not tasks[measure.task]["part"]:
            value, error = level(measure, tasks[measure.task])
            found.append(f"{measure.label} {value:.3f}" + ("" if error is None else f" ± {error:.3f}"))
    return "; ".join(found)
