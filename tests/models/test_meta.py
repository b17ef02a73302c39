"""Models without values."""

import subprocess
import sys

import torch

from attention_residuals import AttnRes, Blocks, build_decoder
from attention_residuals.models import Decoder, DecoderConfig
from attention_residuals.models.meta import without_values

CONFIG = DecoderConfig.from_depth(3, residual=AttnRes(Blocks(2)))


def test_it_has_the_shapes_and_types_of_the_model() -> None:
    with without_values():
        model = Decoder(CONFIG)
    whole = build_decoder(CONFIG, seed=0).state_dict()
    found = model.state_dict()
    assert {tensor.device.type for tensor in found.values()} == {"meta"}
    assert {k: (v.shape, v.dtype) for k, v in found.items()} == {k: (v.shape, v.dtype) for k, v in whole.items()}


def test_values_are_drawn_again_afterwards() -> None:
    with without_values():
        before = torch.get_rng_state()
        torch.nn.Linear(3, 3)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.nn.Linear(3, 3).weight.std() > 0 and torch.empty(9).normal_().std() > 0


def test_a_model_is_built_without_the_compiler() -> None:
    script = (
        "import sys; from attention_residuals import DecoderConfig, build_decoder;"
        "build_decoder(DecoderConfig.from_depth(2), seed=0); print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
