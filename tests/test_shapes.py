"""The shapes in signatures are true: every function of the package, called with its annotations checked."""

import subprocess
import sys
import textwrap

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

from attention_residuals import attn_res

# In a process of its own: the hook rewrites the package on import, and torch.compile does not see through it.
WALK = """
    from jaxtyping import install_import_hook
    with install_import_hook("attention_residuals", "beartype.beartype"):
        import attention_residuals as ar
        from attention_residuals.train import TokenData, TrainConfig
        from attention_residuals.train import conclude, start_training, training_steps
        from attention_residuals.inference import Padding, StaticCache, forward_with_taps, generate
        from attention_residuals.hf import AttnResForCausalLM
        from attention_residuals.streams import RmsBlockAttnRes
    import sys, dataclasses, pathlib, torch

    data = TokenData.from_bytes(bytes(range(97, 123)) * 40, b"some text to hold out" * 20, 16)
    streams = [
        ar.Additive(),
        ar.AttnRes(),
        ar.AttnRes(ar.Sublayers(3), two_phase=True),
        ar.AttnRes(ar.Blocks(2), scale=ar.ReadScale.SUM, output_read=False),
        ar.AttnRes(ar.Sublayers(3), query=ar.Query.PROJECTED, heads=2),
        ar.AttnRes(query=ar.Query.NONE, weighting=ar.Weighting.SIGMOID, window_sublayers=2),
        RmsBlockAttnRes(ar.Sublayers(2)),
    ]
    for n, residual in enumerate(streams):
        config = dataclasses.replace(ar.DecoderConfig.from_depth(2, residual=residual), qk_norm=n % 2 == 0)
        run = TrainConfig(config, steps=2, batch_sequences=2)
        training = start_training(run, data, pathlib.Path(sys.argv[1]) / str(n), about={})
        assert len(list(training_steps(training))) == 2
        conclude(training)
        prompts = [torch.tensor([97]), torch.tensor([98, 99, 97])]
        generate(training.model, prompts, tokens=2, chunk_tokens=2)
        generate(training.model, prompts, tokens=2, padding=Padding.RIGHT, cache=StaticCache(5))
        forward_with_taps(training.model, prompts[1][None], [0, 3])
        ids, mask = torch.tensor([[97, 98, 99], [0, 97, 98]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
        model = AttnResForCausalLM.from_decoder(training.model)
        model(ids, attention_mask=mask, labels=ids, output_hidden_states=True)
        model.generate(ids, attention_mask=mask, max_new_tokens=2, pad_token_id=0)
    from attention_residuals.nn import KimiDeltaAttention
    model = ar.build_decoder(ar.DecoderConfig.from_depth(2), seed=0)
    model.sublayers["0"] = KimiDeltaAttention(model.config.width, 2, 3)
    model(torch.zeros(2, 70, dtype=torch.long)).sum().backward()
    generate(model, prompts, tokens=2, chunk_tokens=2)
    generate(model, prompts, tokens=2, padding=Padding.RIGHT, cache=StaticCache(5))
    from attention_residuals.experiments.arms import RIVALS
    for residual in RIVALS.values():
        model = ar.build_decoder(ar.DecoderConfig.from_depth(2, residual=residual), seed=0)
        model(torch.zeros(2, 3, dtype=torch.long)).sum().backward()
        model.stream.mixing([torch.randn(2, 3, model.config.width) for _ in range(5)])
    print("walked")
"""


def test_every_annotated_shape_holds(tmp_path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(WALK), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "walked\n", done.stderr


def test_the_check_bites() -> None:
    checked = jaxtyped(typechecker=beartype)(attn_res)
    checked([torch.zeros(2, 3)], torch.zeros(3))
    with pytest.raises(TypeCheckError):
        checked([torch.zeros(2, 3)], torch.zeros(4))
