"""Tasks of `lm-eval` by name, by file or from questions of our own, and their scores as plain objects."""

import contextlib
import difflib
import hashlib
import importlib.util
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_residuals.errors import InputError
from attention_residuals.experiments.evaluation.items import CHOICES, CONTINUATION, RECALL, WORD, Questions

if TYPE_CHECKING:
    from attention_residuals.experiments.evaluation.scorer import Scorer

LOCAL_VERSION = 1
"""Of the local tasks: scores of different versions are of different questions."""

LOCAL_TASKS = (CONTINUATION, RECALL, WORD)

BOOTSTRAP_DRAWS = 1000
"""For standard errors without a formula; their own error is then about 2 %."""

CHANCE = {CONTINUATION: 1 / CHOICES}


def require_lm_eval() -> None:
    """Refuse to begin without the libraries that all of this needs.

    Raises:
        InputError: one of them is not installed.
    """
    for module in ("lm_eval", "transformers", "datasets"):
        if importlib.util.find_spec(module) is None:
            raise InputError(f"evaluation needs {module}: pip install 'attention-residuals[eval]'")


def local_task(questions: Questions) -> Any:
    """A task of `lm-eval` from questions in memory."""
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    documents = {"test": Dataset.from_list(questions.documents)}
    metrics = ("acc", "acc_norm", "acc_mutual_info") if questions.name == CONTINUATION else ("acc", "perplexity")
    config = {
        "task": questions.name,
        "custom_dataset": lambda **_: documents,
        "test_split": "test",
        "doc_to_text": "context",
        "target_delimiter": "",
        "num_fewshot": 0,
        "metadata": {"version": LOCAL_VERSION},
        "metric_list": [
            {
                "metric": name,
                "aggregation": "perplexity" if name == "perplexity" else "mean",
                "higher_is_better": name != "perplexity",
            }
            for name in metrics
        ],
    }
    if questions.name == CONTINUATION:
        config |= {"output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "answer"}
    else:
        config |= {"output_type": "loglikelihood", "doc_to_target": "target"}
    return ConfigurableTask(config=config)


def named_tasks(names: Sequence[str]) -> list[Any]:
    """Tasks, groups and tags that `lm-eval` brings, or those of YAML files, with their data.

    Raises:
        InputError: a name it does not know, data that cannot be had here, or a task that runs what models write.
    """
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_defaults=not all(_is_file(name) for name in names))
    for name in names:
        if not _is_file(name) and name not in manager.task_index:
            known = [*LOCAL_TASKS, *manager.all_tasks]
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or list(LOCAL_TASKS)
            raise InputError(f"there is no task '{name}'; did you mean {', '.join(near)}?")
    tasks = []
    for name in names:
        try:
            with muted():
                loaded = manager.load([name])
        except Exception as error:  # data sets, their hosts and the code of tasks raise whatever they like
            raise InputError(
                f"task {name} cannot be loaded ({_first_line(error)}); evaluate it once where there is a network "
                "and keep the folder HF_HOME, or leave out --tasks for those made from held-out text"
            ) from error
        for task in loaded["tasks"].values():
            if getattr(task, "UNSAFE_CODE", False):
                raise InputError(
                    f"task {name} runs the code that a model writes; export the run, and give lm_eval's own command "
                    "--confirm_run_unsafe_code where that does no harm"
                )
        tasks += list(loaded.get("groups", {}).values()) or list(loaded["tasks"].values())
    return tasks


def score(scorer: "Scorer", tasks: Sequence[Any], limit: int | None = None) -> dict[str, Any]:
    """Ask all questions and plainly say how they were answered. The library prints as it goes; see `muted`.

    Args:
        scorer: the model.
        tasks: from `local_task` or `named_tasks`; they may be asked again.
        limit: questions of each task at most.

    Returns: by name of task or group, see `_record`.
    """
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    ask: Any = simple_evaluate  # a decorator hides its arguments
    with _one_process():
        found = ask(
            scorer,
            tasks=list(tasks),
            limit=limit,
            bootstrap_iters=BOOTSTRAP_DRAWS,
            task_manager=TaskManager(include_defaults=False),
        )
    children = {child for names in found["group_subtasks"].values() for child in names}
    return {
        name: {**_record(found, name), "part": name in children, "shortened": scorer.shortened[name]}
        for name in found["results"]
    }


def _record(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One task: version, examples shown, questions, chance, metrics `{key: {value, stderr, higher_is_better}}`.

    `by_item` has the value of each question where it is a number, and `questions` a hash of them all: two scores can be
    paired where it is the same. Groups have neither. `part` says that it belongs to a group, `shortened` how many of
    its requests did not fit into the context.
    """
    results, samples = found["results"][name], found.get("samples", {}).get(name, [])
    better = found["higher_is_better"].get(name, {})
    metrics = {}
    for key, value in results.items():
        metric, comma, kind = key.partition(",")
        if comma and not metric.endswith("_stderr") and _is_number(value):
            error = results.get(f"{metric}_stderr,{kind}")
            metrics[key] = {
                "value": float(value),
                "stderr": float(error) if _is_number(error) else None,
                "higher_is_better": better.get(metric),
            }
    hashes = "".join(dict.fromkeys(f"{sample['doc_id']} {sample['doc_hash']}\n" for sample in samples))
    return {
        "version": found["versions"].get(name),
        "few_shot": found["n-shot"].get(name),
        "items": results.get("sample_len") or found.get("n-samples", {}).get(name, {}).get("effective"),
        "chance": CHANCE.get(name),
        "metrics": metrics,
        "by_item": _by_item(samples, metrics),
        "questions": hashlib.sha256(hashes.encode()).hexdigest()[:16] if samples else None,
    }


def _by_item(samples: Sequence[Mapping[str, Any]], metrics: Mapping[str, Any]) -> dict[str, list[float]]:
    found = {}
    for key in metrics:
        metric, _, kind = key.partition(",")
        values = [sample[metric] for sample in samples if sample["filter"] == kind and metric in sample]
        if values and all(_is_number(value) for value in values):
            found[key] = [round(float(value), 6) for value in values]
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number | np.bool_)


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) and Path(name).is_file()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """What the library prints of its progress goes nowhere: we show our own."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """Standard errors are drawn in this process: thousand draws are done before others have started."""
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before
