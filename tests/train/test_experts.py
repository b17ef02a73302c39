"""Training with experts: stacks under Muon, biases in checkpoints and in resumed runs, loads in probes."""

from pathlib import Path

import pytest
import torch
from torch import nn

from attention_residuals import Decoder, DecoderConfig
from attention_residuals.models import init_decoder, recompute_steps
from attention_residuals.nn import LatentAttention, MixtureOfExperts, take_router_loads, update_router_biases
from attention_residuals.train import AdamW, Muon, Optimizer, build_optimizers, probe, token_losses
from attention_residuals.train.checkpoints import load_checkpoint, save_checkpoint
from attention_residuals.train.stacked_muon import StackedMuon, orthogonalised
from tests.train.support import DATA, small_model

CONFIGS = [AdamW(), Muon()]
ROUTERS = ["sublayers.1.router", "sublayers.3.router"]


def model_of_experts() -> Decoder:
    """A decoder with latent attention and experts where attention and SwiGLU stand."""
    model = small_model()
    assert isinstance(model.config, DecoderConfig)
    width, rotated = model.config.width, model.config.head_dim
    for i in (0, 2):
        model.sublayers[str(i)] = LatentAttention(width, 2, 12, 8, rotated, 8)
        model.sublayers[str(i + 1)] = MixtureOfExperts(width, 8, 6, 2, scale=2.0)
    init_decoder(model, seed=0)
    return model


class Run:
    """A model, its optimisers and biases that are updated after each step."""

    def __init__(self, config: Optimizer):
        self.model = model_of_experts()
        self.optimizers = build_optimizers(self.model, config)

    def train(self, steps: range) -> list[float]:
        losses = []
        for step in steps:
            loss = token_losses(self.model, DATA.batch(0, step, 4)).mean()
            self.optimizers.zero_grad()
            loss.backward()
            self.optimizers.step()
            update_router_biases(self.model, 0.01)
            losses.append(loss.item())
        return losses


@pytest.mark.parametrize("config", CONFIGS)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_last_bit(tmp_path: Path, config: Optimizer) -> None:
    run = Run(config)
    losses = run.train(range(4))
    assert losses[-1] < losses[0]
    biases = [run.model.get_buffer(f"{name}.bias").clone() for name in ROUTERS]
    assert all(bias.any() for bias in biases)
    path = save_checkpoint(tmp_path, step=4, model=run.model, optimizers=run.optimizers.by_name, facts={})
    losses = run.train(range(4, 7))

    resumed = Run(config)
    resumed.train(range(10, 12))
    load_checkpoint(path, model=resumed.model, optimizers=resumed.optimizers.by_name)
    for name, bias in zip(ROUTERS, biases, strict=True):
        assert torch.equal(resumed.model.get_buffer(f"{name}.bias"), bias)
    assert resumed.train(range(4, 7)) == losses


def test_matrices_of_experts_are_trained_as_other_matrices() -> None:
    for config, optimizer in zip(CONFIGS, ("adamw", "stacked_muon"), strict=True):
        rows = {row["role"]: row for row in build_optimizers(model_of_experts(), config).describe()}
        for role, count in (("expert matrix", 4), ("expert output matrix", 2)):
            assert rows[role]["optimizer"] == optimizer and rows[role]["tensors"] == count
            for setting in ("learning_rate", "weight_decay"):
                assert rows[role][setting] == rows["matrix"][setting] > 0
    muon = build_optimizers(model_of_experts(), Muon()).by_name["muon"]
    names = {name for group in muon.param_groups for name in group["names"]}
    assert {f"{name}.matrix.weight" for name in ROUTERS} < names


@pytest.mark.parametrize("shape", [(5, 12, 8), (20, 8, 12), (2, 1, 7)])
def test_a_stack_is_stepped_as_torchs_muon_steps_each_matrix(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    stack = nn.Parameter(torch.randn(shape))
    matrices = [nn.Parameter(matrix.detach().clone()) for matrix in stack]
    ours = StackedMuon([stack], lr=0.02, weight_decay=0.2, momentum=0.9)
    theirs = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.2, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    for n in range(4):
        stack.grad = torch.randn(shape) * 10.0 ** -(torch.arange(shape[0]) % 5).view(-1, 1, 1) / (n + 1)
        stack.grad[0] = 0  # an expert without tokens
        before = stack.detach().clone()
        for matrix, grad in zip(matrices, stack.grad.clone(), strict=True):
            matrix.grad = grad
        ours.step()
        theirs.step()
        expected = torch.stack([matrix.detach() for matrix in matrices])
        # Both round to bfloat16 at the same places; one more rounding each is what other products could add.
        allowed = 2 * torch.finfo(torch.bfloat16).eps * (expected - before).norm()
        assert (stack.detach() - expected).norm() <= allowed
    assert list(ours.state[stack]) == ["momentum_buffer"] and ours.state[stack]["momentum_buffer"].shape == shape


def test_every_matrix_has_singular_values_near_one() -> None:
    torch.manual_seed(0)
    stack = torch.randn(4, 16, 24) * torch.tensor([1e-6, 1.0, 1e6, 0.0]).view(-1, 1, 1)
    values = torch.linalg.svdvals(orthogonalised(stack).float())
    assert values[:3].min() > 0.3 and values[:3].max() < 1.3 and not values[3].any()


def test_a_matrix_that_is_no_stack_is_refused() -> None:
    with pytest.raises(ValueError, match=r"takes stacks of matrices, and was given a tensor \[2, 3\]"):
        StackedMuon([nn.Parameter(torch.zeros(2, 3))])


def test_a_probe_shows_the_loads_and_leaves_them() -> None:
    model, batch = model_of_experts(), DATA.batch(0, 0, 3)
    token_losses(model, batch).mean().backward()
    loads = take_router_loads(model)
    model.zero_grad()
    token_losses(model, batch).mean().backward()
    found = probe(model, batch)
    assert list(found.expert_shares) == list(found.expert_peak) == ROUTERS
    for name, load in take_router_loads(model).items():
        assert torch.equal(load, loads[name])
        assert found.expert_shares[name] == pytest.approx((load / load.sum()).tolist())
        assert found.expert_peak[name] == pytest.approx(6 * max(found.expert_shares[name]))
    assert probe(small_model(), batch).expert_shares == {}


def test_recomputed_steps_train_alike() -> None:
    kept, recomputed = Run(AdamW()), Run(AdamW())
    recompute_steps(recomputed.model, lambda _: True)
    assert kept.train(range(3)) == recomputed.train(range(3))
    for name in ROUTERS:
        assert torch.equal(kept.model.get_buffer(f"{name}.bias"), recomputed.model.get_buffer(f"{name}.bias"))
