"""Scores of models as read from their `evaluation.json`, and paired differences between them. Knows no torch."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_residuals.errors import InputError
from attention_residuals.experiments.results import Difference, interval_half_width
from attention_residuals.experiments.studies.state import PLAN, RUNS

EVALUATION = "evaluation.json"
"""In the folder of a run or exported model."""

SHARES = ("acc", "exact_match", "em", "f1", "pass", "mc1", "mc2")
"""Beginnings of the names of measures that are shares, shown in percent."""

COMPARED, OF_THE_ARM = ("part", "compare"), ("stream", "active")
"""Labels of a study's runs that name no table: what all compared runs have, and what follows from the arm."""

TELLING = ("perplexity", "acc_mutual_info")
"""Measures that tell small models apart sooner than whether what is likeliest is right."""


@dataclass(frozen=True, eq=False)
class Scored:
    """One model: the column and the table it belongs in, and its `evaluation.json`."""

    arm: str
    group: str
    seed: Any
    about: dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """A task and one of the numbers it gives, named as `lm-eval` does: `metric,filter`."""

    task: str
    key: str

    @property
    def name(self) -> str:
        """The metric without the filter of its answers."""
        return self.key.partition(",")[0]

    @property
    def label(self) -> str:
        """For people; the filter is named where it is not the plain one."""
        kind = self.key.partition(",")[2]
        name = "log-probability" if self.is_perplexity else self.name
        return f"{self.task}, {name}" + ("" if kind in ("", "none") else f" ({kind})")

    @property
    def is_share(self) -> bool:
        """Whether it lies between 0 and 1 and is shown in percent."""
        return self.name.startswith(SHARES)

    @property
    def is_perplexity(self) -> bool:
        """Whether it is shown as the log-probability that it is made from: that of a word can have any size."""
        return self.name == "perplexity"


def most_telling(measures: Iterable[Measure]) -> list[Measure]:
    """One measure of each task: one that tells models apart soon if it has one, else its first."""
    chosen: dict[str, Measure] = {}
    for measure in measures:
        if measure.task not in chosen or measure.name in TELLING:
            chosen[measure.task] = measure
    return list(chosen.values())


def read_evaluation(folder: Path) -> dict[str, Any] | None:
    """What is known of the model in `folder`, None if it was never evaluated.

    Raises:
        InputError: the file is damaged.
    """
    file = folder / EVALUATION
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}); remove it and evaluate the run again") from error


def read_scored(folder: Path) -> Scored | None:
    """The model in `folder` with its place in a report; None if it was never evaluated.

    A run of a study is placed by its labels: `arm` is its column, the others but `seed` and what follows from the arm
    are its table. Any other folder is a column by itself.

    Raises:
        InputError: the file is damaged.
    """
    about = read_evaluation(folder)
    if about is None:
        return None
    plan = folder.parent.parent / PLAN / f"{folder.name}.json"
    if folder.parent.name != RUNS or not plan.exists():
        return Scored(folder.name, "", None, about)
    labels = dict(json.loads(plan.read_text())["run"]["labels"])
    arm, seed = labels.pop("arm", folder.name), labels.pop("seed", None)
    labels = {name: value for name, value in labels.items() if (name, value) != COMPARED and name not in OF_THE_ARM}
    return Scored(str(arm), ", ".join(f"{name} {value}" for name, value in labels.items()), seed, about)


def records(measure: Measure, scored: Iterable[Scored]) -> list[dict[str, Any]]:
    """What the models that were measured so say of that task."""
    found = (one.about["tasks"].get(measure.task) for one in scored)
    return [record for record in found if record is not None and measure.key in record["metrics"]]


def level(measure: Measure, record: dict[str, Any]) -> tuple[float, float | None]:
    """What is shown of a measure, and its standard error: its value, or of a perplexity the mean log-probability."""
    found, items = record["metrics"][measure.key], record["by_item"].get(measure.key, [])
    if not measure.is_perplexity:
        return found["value"], found["stderr"]
    return -math.log(found["value"]), statistics.stdev(items) / math.sqrt(len(items)) if len(items) > 1 else None


def difference(measure: Measure, mine: Sequence[Scored], theirs: Sequence[Scored]) -> Difference | None:
    """What one arm is above another, with its 95 % interval; None where their scores cannot be paired.

    Over the seeds both have, if there are several; else over the questions, if they were asked the same ones.
    """
    by_seed = {one.seed: one for one in theirs}
    pairs = [records(measure, (one, by_seed[one.seed])) for one in mine if one.seed in by_seed]
    pairs = [pair for pair in pairs if len(pair) == 2]
    if not all(_same_questions(*pair) for pair in pairs):
        return None
    means = [level(measure, a)[0] - level(measure, b)[0] for a, b in pairs]
    if len(pairs) > 1:
        return Difference(statistics.fmean(means), interval_half_width(means), means, "seeds")
    if not pairs or not all(measure.key in record["by_item"] for record in pairs[0]):
        return None
    items = [a - b for a, b in zip(*(record["by_item"][measure.key] for record in pairs[0]), strict=True)]
    return Difference(means[0], interval_half_width(items), means, "questions")


def higher_is_better(measure: Measure, scored: Sequence[Scored]) -> bool:
    """Whether a positive `difference` is good: unless the task says otherwise."""
    said = [record["metrics"][measure.key]["higher_is_better"] for record in records(measure, scored)]
    return measure.is_perplexity or False not in said


def _same_questions(mine: dict[str, Any], theirs: dict[str, Any]) -> bool:
    keys = ("version", "few_shot", "questions", "limit", "items")
    return all(mine[key] == theirs[key] for key in keys)
