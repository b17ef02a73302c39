"""Parameters that are spread before they have values get those of the whole model."""

from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from attention_residuals.distributed.layout import Parallel, PipelineConfig
from attention_residuals.distributed.mesh import open_mesh
from attention_residuals.distributed.ranks import run_on_ranks
from attention_residuals.distributed.runners import build_runner
from attention_residuals.models import DecoderConfig, build_decoder
from attention_residuals.streams import AttnRes, Sublayers

UNEVEN = DecoderConfig(11, 2, 10, 2, 2, 4, 14, residual=AttnRes(Sublayers(2)), qk_norm=True)
LAYOUTS = (
    Parallel(shards=4),
    Parallel(tensor=2, shards=2),
    Parallel(replicas=2, shards=2),
    Parallel(stages=2, shards=2, pipeline=PipelineConfig(2)),
)


def four_ranks(rank: int, folder: Path) -> None:
    values = dict(build_decoder(UNEVEN, seed=3).named_parameters())
    for layout in LAYOUTS:
        runner = build_runner(
            UNEVEN, layout, open_mesh(layout), seed=3, device="cpu", rows=2, tokens=4,
            loss=lambda logits, targets: logits.sum(-1), prepare=lambda part: None,
        )  # fmt: skip
        held = 0
        for part in runner.parts:
            for name, parameter in part.named_parameters():
                whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
                torch.testing.assert_close(whole, values[name], rtol=0, atol=0, msg=f"{layout}: {name}")
                held += (parameter.to_local() if isinstance(parameter, DTensor) else parameter).numel()
        assert held < 0.7 * sum(value.numel() for value in values.values())
    (folder / f"done-{rank}").touch()


@pytest.mark.dist
def test_initial_weights_are_those_of_one_process(tmp_path: Path) -> None:
    run_on_ranks(4, tmp_path, four_ranks)
    assert len(list(tmp_path.glob("done-*"))) == 4
