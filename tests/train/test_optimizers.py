"""Groups by role, never by shape; steps that equal torch's own; and what Muon does to a depth query."""

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch

from attention_residuals import (
    Additive,
    AttnRes,
    Decoder,
    DecoderConfig,
    InputError,
    Residual,
    Sublayers,
    build_decoder,
)
from attention_residuals.models import Role
from attention_residuals.nn import KimiDeltaAttention
from attention_residuals.train import (
    MATRICES_AND_QUERIES,
    AdamW,
    Muon,
    Optimizer,
    Optimizers,
    build_optimizers,
    token_losses,
)

ADAMW = AdamW(learning_rate=1e-2, depth_learning_rate=3e-3, weight_decay=0.2)
MUON = Muon(learning_rate=2e-2, adamw=ADAMW)
CONTROL = dataclasses.replace(MUON, roles=MATRICES_AND_QUERIES)
CONFIGS = [ADAMW, MUON, CONTROL]
BATCH = torch.arange(1, 67).view(2, 33)


def decoder(residual: Residual | None = None) -> Decoder:
    return build_decoder(DecoderConfig.from_depth(2, residual=residual or AttnRes(Sublayers(3))), seed=0)


def names(optimizers: Optimizers, optimizer: str) -> set[str]:
    return {name for group in optimizers.by_name[optimizer].param_groups for name in group["names"]}


def train(model: Decoder, step: Callable[[int], None], steps: int = 4) -> None:
    for n in range(steps):
        model.zero_grad()
        token_losses(model, BATCH + n).mean().backward()
        step(n)


def assert_equal_to_the_last_bit(one: Decoder, two: Decoder) -> None:
    for (name, ours), theirs in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def train_ours(model: Decoder, config: Optimizer) -> None:
    optimizers = build_optimizers(model, config)

    def step(n: int) -> None:
        optimizers.set_rate(1 / (n + 1))
        optimizers.step()

    train(model, step)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("residual", [Additive(), AttnRes(), AttnRes(Sublayers(3))])
def test_every_parameter_is_in_one_group(residual: Residual, config: Optimizer) -> None:
    model = decoder(residual)
    groups = [group for each in build_optimizers(model, config).by_name.values() for group in each.param_groups]
    assert sorted(name for group in groups for name in group["names"]) == sorted(dict(model.named_parameters()))
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


@pytest.mark.parametrize("config", CONFIGS)
def test_depth_parameters_have_their_own_rate_and_no_decay(config: Optimizer) -> None:
    rows = [row for row in build_optimizers(decoder(), config).describe() if row["role"].startswith("depth")]
    assert {row["role"] for row in rows} == {"depth query", "depth norm"}
    for row in rows:
        assert row["learning_rate"] == 3e-3 and row["weight_decay"] == 0
        assert row["tensors"] == 4, "sublayers 1 to 3 and the output read"


@pytest.mark.parametrize("config", CONFIGS)
def test_only_matrices_are_decayed(config: Optimizer) -> None:
    for row in build_optimizers(decoder(), config).describe():
        assert (row["weight_decay"] > 0) == (row["role"] in ("matrix", "output matrix", "head"))


def test_muon_trains_the_matrices_inside_sublayers_and_nothing_else() -> None:
    optimizers = build_optimizers(decoder(), MUON)
    attention, mlp = ("query", "key", "value", "output"), ("gate", "up", "output")
    expected = {f"sublayers.{i}.{name}.weight" for i in range(4) for name in (mlp if i % 2 else attention)}
    assert optimizers.by_name.keys() == {"muon", "adamw"}
    assert names(optimizers, "muon") == expected
    assert {"embedding.weight", "head.weight", "norm.weight", "stream.queries.1"} < names(optimizers, "adamw")
    assert {group["lr"] for group in optimizers.by_name["muon"].param_groups} == {2e-2}


def test_the_control_moves_the_queries_alone() -> None:
    right, control = build_optimizers(decoder(), MUON), build_optimizers(decoder(), CONTROL)
    queries = {f"stream.queries.{key}" for key in ("1", "2", "3", "output")}
    assert names(control, "row_muon") == queries == names(right, "adamw") - names(control, "adamw")
    assert names(control, "muon") == names(right, "muon")


def test_adamw_equals_a_plain_one_to_the_last_bit() -> None:
    ours, plain = decoder(), decoder()
    train_ours(ours, ADAMW)
    kinds: dict[str, list[torch.Tensor]] = {"decayed": [], "depth": [], "other": []}
    for name, parameter in plain.named_parameters():
        depth = name.startswith(("stream.queries", "stream.key_norms"))
        decayed = parameter.ndim == 2 and name != "embedding.weight"
        kinds["depth" if depth else "decayed" if decayed else "other"].append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": kinds["decayed"], "lr": 1e-2, "weight_decay": 0.2},
            {"params": kinds["depth"], "lr": 3e-3, "weight_decay": 0.0},
            {"params": kinds["other"], "lr": 1e-2, "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        fused=True,
    )
    peaks = [group["lr"] for group in optimizer.param_groups]

    def step(n: int) -> None:
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * (1 / (n + 1))
        optimizer.step()

    train(plain, step)
    assert_equal_to_the_last_bit(ours, plain)


def test_muon_equals_torchs_own_to_the_last_bit() -> None:
    ours, plain = decoder(), decoder()
    train_ours(ours, MUON)
    matrices = {name: matrix for name, matrix in plain.sublayers.named_parameters() if matrix.ndim == 2}
    muon = torch.optim.Muon(matrices.values(), lr=2e-2, weight_decay=0.2, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    others = build_optimizers(plain, ADAMW)
    others.by_name["adamw"].param_groups[:] = [
        group for group in others.by_name["adamw"].param_groups if group["role"] not in ("matrix", "output matrix")
    ]

    def step(n: int) -> None:
        muon.param_groups[0]["lr"] = 2e-2 * (1 / (n + 1))
        others.set_rate(1 / (n + 1))
        muon.step()
        others.step()

    train(plain, step)
    assert_equal_to_the_last_bit(ours, plain)


def test_the_control_gives_each_query_the_step_of_a_matrix_of_one_row() -> None:
    model = decoder()
    query = model.get_parameter("stream.queries.2")
    row = torch.nn.Parameter(query.detach().clone().unsqueeze(0))
    ours = build_optimizers(model, CONTROL)
    plain = torch.optim.Muon([row], lr=3e-3, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for n in range(3):
        query.grad = torch.randn(query.shape, generator=torch.Generator().manual_seed(n))
        row.grad = query.grad.clone().unsqueeze(0)
        ours.step()
        plain.step()
        assert query.any() and torch.equal(query, row.squeeze(0))
    ours.zero_grad()
    assert query.grad is None


def query_steps(config: Optimizer, sizes: list[float]) -> list[float]:
    """How far a depth query moves at each step, for gradients of one direction and the given sizes."""
    model = decoder()
    query = model.get_parameter("stream.queries.2")
    direction = torch.nn.functional.normalize(
        torch.randn(query.shape, generator=torch.Generator().manual_seed(0)), dim=0
    )
    optimizers, moved = build_optimizers(model, config), []
    for size in sizes:
        before = query.detach().clone()
        query.grad = size * direction
        optimizers.step()
        moved.append((query.detach() - before).norm().item())
    return moved


def test_a_query_under_muon_moves_as_far_whatever_its_gradient() -> None:
    """Newton-Schulz makes a row one of length about 1: scale is lost, between runs and, unlike in AdamW, within one."""
    first = [query_steps(CONTROL, [size])[0] for size in (1e-3, 1.0, 1e3)]
    assert max(first) < 1.1 * min(first)
    fading = [1.0] * 20 + [1e-3] * 40  # as when the read has found its temperature
    under_adamw, under_muon = query_steps(MUON, fading), query_steps(CONTROL, fading)
    assert under_adamw[-1] < 0.1 * under_adamw[19]
    assert under_muon[-1] > 0.6 * under_muon[19]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_rate_scales_every_group(config: Optimizer) -> None:
    optimizers = build_optimizers(decoder(), config)
    groups = [group for each in optimizers.by_name.values() for group in each.param_groups]
    optimizers.set_rate(0.5)
    assert all(type(group["lr"]) is float and group["lr"] == 0.5 * group["peak_lr"] for group in groups)
    optimizers.set_rate(1.0)
    assert all(group["lr"] == group["peak_lr"] == config.rate(Role(group["role"])) for group in groups)


@pytest.mark.parametrize("config", CONFIGS)
def test_gradients_are_dropped(config: Optimizer) -> None:
    model = decoder()
    optimizers = build_optimizers(model, config)
    token_losses(model, BATCH).mean().backward()
    optimizers.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("config", CONFIGS)
def test_states_go_on_where_they_were_saved(config: Optimizer) -> None:
    whole = decoder()
    optimizers = build_optimizers(whole, config)
    train(whole, lambda n: optimizers.step(), steps=2)
    resumed = copy.deepcopy(whole)
    others = build_optimizers(resumed, config)
    for name, optimizer in optimizers.by_name.items():
        others.by_name[name].load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(whole, lambda n: optimizers.step())
    train(resumed, lambda n: others.step())
    assert_equal_to_the_last_bit(whole, resumed)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_description_counts_what_is_there(config: Optimizer) -> None:
    with torch.device("meta"):
        model = Decoder(DecoderConfig.from_depth(2, residual=AttnRes()))
    rows = build_optimizers(model, config).describe()
    assert sum(row["parameters"] for row in rows) == sum(parameter.numel() for parameter in model.parameters())
    by_role = {row["role"]: row["optimizer"] for row in rows}
    assert by_role["head"] == by_role["embedding"] == by_role["norm"] == by_role["depth norm"] == "adamw"
    assert by_role["depth query"] == ("row_muon" if config is CONTROL else "adamw")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(AdamW, "learning_rate"), (AdamW, "depth_learning_rate"), (AdamW, "clip_norm"), (Muon, "learning_rate")],
)
def test_a_rate_that_is_none_is_refused(kind: type[Optimizer], name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{name} is {value}; it must be a positive number"):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AdamW(weight_decay=-0.1), "weight_decay is -0.1"),
        (lambda: AdamW(betas=(0.9, 1.0)), r"betas are \(0.9, 1.0\)"),
        (lambda: Muon(momentum=1.0), "momentum is 1.0"),
        (lambda: Muon(roles=(Role.MATRIX, Role.NORM)), "roles of Muon are matrix, norm; choose HIDDEN_MATRICES"),
        (lambda: Muon(roles=()), "roles of Muon are empty"),
    ],
)
def test_other_settings_that_cannot_be_are_refused(build: Callable[[], Optimizer], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


@pytest.mark.parametrize("config", CONFIGS)
def test_decays_and_convolutions_of_recurrent_sublayers_are_adamws_and_never_decayed(config: Optimizer) -> None:
    rows = {row["role"]: row for row in build_optimizers(KimiDeltaAttention(8, 2, 4), config).describe()}
    for role in (Role.CONVOLUTION, Role.STATE_DECAY):
        assert rows[role.value]["optimizer"] == "adamw" and rows[role.value]["weight_decay"] == 0
    assert rows[Role.MATRIX.value]["weight_decay"] > 0
