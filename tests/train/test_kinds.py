"""A decoder of windows and Mamba-2 through a whole life: trained, stopped, resumed, read back, asked for text."""

import json
from pathlib import Path

import torch

from attention_residuals import AttnRes, Sublayers
from attention_residuals.inference import generate
from attention_residuals.models import (
    Gated,
    GroupedQuery,
    HybridConfig,
    Role,
    StateSpace,
    build_decoder,
    parameter_roles,
    repeated,
)
from attention_residuals.train import (
    Muon,
    Recompute,
    TokenData,
    TrainConfig,
    build_optimizers,
    load_trained,
    read_config,
    resume_training,
    start_training,
    training_steps,
)

TEXT = b"the quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 40
DATA = TokenData.from_bytes(TEXT, TEXT[:1000], 32)
PATTERN = (GroupedQuery(2, 1, 6, window=8), StateSpace(4, 6, 5, groups=2), GroupedQuery(2, 1, 6))
MODEL = HybridConfig(256, 12, repeated(PATTERN, 3), repeated((Gated(16),), 3), AttnRes(Sublayers(3)))
CONFIG = TrainConfig(model=MODEL, optimizer=Muon(), steps=8, checkpoint_every_steps=4, recompute=Recompute.ALTERNATE)


def losses(path: Path) -> list[float]:
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def test_it_trains_resumes_and_generates(tmp_path: Path) -> None:
    for _ in training_steps(start_training(CONFIG, DATA, tmp_path / "whole", about={})):
        pass
    cut = start_training(CONFIG, DATA, tmp_path / "cut", about={})
    for _, _ in zip(range(5), training_steps(cut), strict=False):
        pass
    assert read_config(tmp_path / "cut") == CONFIG
    for _ in training_steps(resume_training(tmp_path / "cut", CONFIG, DATA, print)):
        pass
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole") and len(losses(tmp_path / "whole")) == 8
    assert losses(tmp_path / "whole")[-1] < losses(tmp_path / "whole")[0]

    trained = load_trained(tmp_path / "cut")
    assert trained.config.model == MODEL
    prompt = torch.tensor(list(b"the quick brown "))
    (text,) = generate(trained.model, [prompt], tokens=12, chunk_tokens=5)
    for n in range(12):
        with torch.no_grad():
            logits = trained.model(torch.cat((prompt, text[:n]))[None])[0, -1]
        assert logits.max() - logits[text[n]] <= 1e-4


def test_what_is_no_matrix_is_neither_decayed_nor_under_muon() -> None:
    model = build_decoder(MODEL, seed=0)
    roles = {name: role for name, role in parameter_roles(model).items() if name.startswith("sublayers.2.")}
    assert {name[12:]: role for name, role in roles.items() if role is not Role.MATRIX} == {
        "convolution.weight": Role.CONVOLUTION,
        "convolution.bias": Role.BIAS,
        "decay.A_log": Role.STATE_DECAY,
        "decay.dt_bias": Role.STATE_DECAY,
        "decay.D": Role.STATE_DECAY,
        "output_norm.weight": Role.NORM,
        "output.weight": Role.OUTPUT,
    }
    rows = {row["role"]: row for row in build_optimizers(model, Muon()).describe()}
    for role in (Role.CONVOLUTION, Role.STATE_DECAY, Role.BIAS):
        assert rows[role.value]["optimizer"] == "adamw" and rows[role.value]["weight_decay"] == 0
    assert (model.get_parameter("sublayers.2.decay.D") == 1).all()
    assert model.get_parameter("sublayers.2.decay.A_log").unique().numel() == 4
