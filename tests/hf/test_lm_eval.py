"""lm-eval scores an exported run as we do: its command, which does not know this package, and a model in memory."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attention_residuals.hf.export import export
from attention_residuals.train import load_trained
from tests.hf.test_export import trained_run

QUESTIONS = [
    {"question": "the quick brown", "choices": [" fox", " zzzz"], "answer": 0},
    {"question": "over the", "choices": [" qqqqq", " lazy"], "answer": 1},
    {"question": "the lazy", "choices": [" dog", " cat, who is"], "answer": 0},
]
TEXTS = ["the dog does not mind at all", "caf\u00e9"]

CHOICE = """
task: own_choice
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/choice.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
ROLLING = """
task: own_text
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/text.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]
"""

SCORE = """
import functools, json, sys
from lm_eval import simple_evaluate
from lm_eval.__main__ import cli_evaluate
from lm_eval.tasks import TaskManager
# To read the thousands of tasks that it comes with takes longer than all the rest.
TaskManager.__init__ = functools.partialmethod(TaskManager.__init__, include_defaults=False)
run, folder = sys.argv[1:]
tasks = f"{folder}/tasks"
sys.argv = ["lm_eval", "--model", "hf", "--model_args", f"pretrained={run},trust_remote_code=True", "--device", "cpu",
            "--tasks", "own_choice,own_text", "--include_path", tasks, "--batch_size", "2", "--output_path", folder]
assert "attention_residuals" not in sys.modules
cli_evaluate()
from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer
from attention_residuals.hf import AttnResForCausalLM
model = HFLM(pretrained=AttnResForCausalLM.from_pretrained(run), tokenizer=AutoTokenizer.from_pretrained(run))
found = simple_evaluate(model, tasks=["own_choice", "own_text"], task_manager=TaskManager(include_path=tasks))
open(f"{folder}/memory.json", "w").write(json.dumps(found["results"]))
"""


def score(run: Path, context: bytes, text: bytes) -> float:
    """Log-probability of `text` after `context`, in nats, by our own model."""
    ids = torch.tensor([[*context, *text]])
    with torch.no_grad():
        found = load_trained(run).model(ids[:, :-1]).log_softmax(-1)
    return found[0].gather(1, ids[0, 1:, None])[-len(text) :].sum().item()


@pytest.mark.slow
def test_scores_are_ours(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run")
    export(run, tmp_path / "out")
    (tmp_path / "tasks").mkdir()
    for name, task, documents in (("choice", CHOICE, QUESTIONS), ("text", ROLLING, [{"text": text} for text in TEXTS])):
        (tmp_path / "tasks" / f"{name}.yaml").write_text(task.replace("FOLDER", str(tmp_path)))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", SCORE, str(tmp_path / "out"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr

    scores = [[score(run, q["question"].encode(), c.encode()) for c in q["choices"]] for q in QUESTIONS]
    right = [row.index(max(row)) == q["answer"] for row, q in zip(scores, QUESTIONS, strict=True)]
    nats = -sum(score(run, b"\0", text.encode()) for text in TEXTS)  # a text begins after the separator
    bits_per_byte = nats / math.log(2) / sum(len(text.encode()) for text in TEXTS)
    (file,) = (path for path in tmp_path.rglob("results_*.json"))
    for results in (json.loads(file.read_text())["results"], json.loads((tmp_path / "memory.json").read_text())):
        assert results["own_choice"]["acc,none"] == pytest.approx(sum(right) / len(right))
        assert results["own_text"]["bits_per_byte,none"] == pytest.approx(bits_per_byte, rel=1e-4)
