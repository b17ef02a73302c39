"""Local tasks are tasks of lm-eval, and what a model knows is what they say."""

import functools
import json
import math
from pathlib import Path

import datasets
import pytest
from datasets import config as settings
from lm_eval import evaluator
from lm_eval.tasks import TaskManager

from attention_residuals import InputError
from attention_residuals.experiments.evaluation.harness import local_task, named_tasks, score
from attention_residuals.experiments.evaluation.items import (
    CONTINUATION,
    RECALL,
    WORD,
    ItemSizes,
    Questions,
    make_questions,
)
from attention_residuals.experiments.evaluation.scorer import Scorer
from attention_residuals.experiments.evaluation.subjects import Loaded
from tests.experiments.evaluation.support import SEQUENCE_TOKENS, copier, text_twice, untrained

YAML = """
task: own_choice
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
metadata: {version: 3}
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No inquiry into the machine, which takes lm-eval a second or two."""
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)


@pytest.fixture(scope="module")
def questions() -> list[Questions]:
    return make_questions(text_twice(), ItemSizes(items=30, window_tokens=SEQUENCE_TOKENS))


@pytest.fixture
def without_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read the thousands of tasks that lm-eval comes with takes longer than all the rest."""
    bare = functools.partialmethod(TaskManager.__init__)
    monkeypatch.setattr(TaskManager, "__init__", lambda self, **_: bare.func(self, include_defaults=False))


def asked(model: Loaded, questions: list[Questions], limit: int | None = None, batch: int = 16) -> dict[str, dict]:
    scorer = Scorer(model.model, model.tokenizer, batch, lambda done, total: None)
    return score(scorer, [local_task(one) for one in questions], limit)


def test_a_model_that_copies_recalls_everything_and_knows_no_new_word(questions: list[Questions]) -> None:
    found = asked(copier(), questions)
    assert found[RECALL]["metrics"]["acc,none"]["value"] == 1
    assert found[WORD]["metrics"]["acc,none"]["value"] == 0
    assert found[CONTINUATION]["metrics"]["acc,none"]["value"] > 0.4


def test_a_model_that_knows_nothing_guesses(questions: list[Questions]) -> None:
    found = asked(untrained(), questions)
    choice = found[CONTINUATION]
    count = choice["items"]
    assert count == 30 and choice["chance"] == 0.25
    assert abs(choice["metrics"]["acc,none"]["value"] - 0.25) < 3 * math.sqrt(0.25 * 0.75 / count)
    assert found[RECALL]["metrics"]["acc,none"]["value"] == found[WORD]["metrics"]["acc,none"]["value"] == 0
    # An untrained model gives each byte about 1/256; a target has six.
    assert math.log(found[RECALL]["metrics"]["perplexity,none"]["value"]) == pytest.approx(6 * math.log(256), rel=0.1)


def test_results_are_under_the_keys_of_lm_eval(questions: list[Questions]) -> None:
    found = asked(untrained(), questions, limit=10)
    assert set(found[CONTINUATION]["metrics"]) == {"acc,none", "acc_norm,none", "acc_mutual_info,none"}
    assert set(found[RECALL]["metrics"]) == {"acc,none", "perplexity,none"}
    for record in found.values():
        assert record["version"] == 1 and record["items"] == 10 and record["few_shot"] == 0 and not record["part"]
        assert record["shortened"] == 0
        for key, measured in record["metrics"].items():
            assert measured["stderr"] is not None and len(record["by_item"][key]) == 10
        assert sum(record["by_item"]["acc,none"]) / 10 == pytest.approx(record["metrics"]["acc,none"]["value"])
    json.dumps(found)


def test_neither_batches_nor_other_tasks_matter(questions: list[Questions]) -> None:
    one, other = asked(untrained(), questions, 10, batch=1), asked(untrained(), questions[1:], 10, batch=32)
    for name, record in other.items():
        assert record["questions"] == one[name]["questions"]
        for key, values in record["by_item"].items():
            assert values == pytest.approx(one[name]["by_item"][key], rel=1e-4)


def own_task(folder: Path) -> Path:
    documents = [
        {"question": "the quick brown", "choices": [" fox", " zzzz"], "answer": 0},
        {"question": "over the", "choices": [" qqqqq", " lazy"], "answer": 1},
    ]
    (folder / "choice.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    (folder / "own.yaml").write_text(YAML.replace("FILE", str(folder / "choice.jsonl")))
    return folder / "own.yaml"


def test_a_task_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "HF_DATASETS_CACHE", tmp_path / "cache")
    scorer = Scorer(untrained().model, untrained().tokenizer, 4, lambda done, total: None)
    found = score(scorer, named_tasks([str(own_task(tmp_path))]))["own_choice"]
    assert found["version"] == 3 and found["items"] == 2 and found["chance"] is None
    assert set(found["by_item"]["acc,none"]) <= {0, 1}


@pytest.mark.usefixtures("without_defaults")
def test_an_unknown_name_has_near_ones() -> None:
    with pytest.raises(InputError, match=r"no task 'heldout_recal'; did you mean heldout_recall"):
        named_tasks(["heldout_recal"])


def test_without_a_network_the_task_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("cannot reach the hub\nfor many reasons")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        InputError, match=r"own\.yaml cannot be loaded \(cannot reach the hub\); evaluate it once where"
    ):
        named_tasks([str(own_task(tmp_path))])


def test_a_task_that_runs_what_models_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "HF_DATASETS_CACHE", tmp_path / "cache")
    file = own_task(tmp_path)
    file.write_text(file.read_text() + "unsafe_code: true\n")
    with pytest.raises(InputError, match="runs the code that a model writes"):
        named_tasks([str(file)])
