"""A mixture of experts against every expert on every token, masked; grouped products; roles; types; bad input."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from attention_residuals import InputError
from attention_residuals.models import Role, init_weights, parameter_roles
from attention_residuals.nn import MixtureOfExperts, SwiGLU, experts
from attention_residuals.nn.experts import grouped_product

WIDTH, HIDDEN, EXPERTS = 6, 5, 8


def build(top_k: int = 3, **kind) -> MixtureOfExperts:
    """With biases that move the choice, and so would the weights if they had a part in them."""
    torch.manual_seed(0)
    made = MixtureOfExperts(WIDTH, HIDDEN, EXPERTS, top_k, **{"scale": 2.5, **kind}).double()
    made.router.bias += torch.randn(EXPERTS) / 4
    return made


def dense(mixture: MixtureOfExperts, x: Tensor) -> Tensor:
    """Every expert on every token, and a mask that is zero for those which are not chosen."""
    router = mixture.router
    scores = torch.sigmoid(x @ router.matrix.weight.T)
    ranks = scores.detach() + router.bias
    size = EXPERTS // router.groups
    allowed = torch.ones_like(ranks, dtype=torch.bool)
    if router.groups > 1:
        best = ranks.unflatten(-1, (router.groups, size)).sort(-1, descending=True).values[..., :2].sum(-1)
        order = best.argsort(-1, descending=True).argsort(-1)
        allowed = (order < router.chosen_groups).repeat_interleave(size, -1)
    place = ranks.where(allowed, ranks.new_tensor(-9.0)).argsort(-1, descending=True).argsort(-1)
    weights = scores * (place < router.top_k)
    weights = weights / weights.sum(-1, keepdim=True) * router.scale
    output = torch.zeros_like(x) if mixture.shared is None else mixture.shared(x)
    for expert in range(EXPERTS):
        gate, up = x @ mixture.gate.weight[expert].T, x @ mixture.up.weight[expert].T
        output = output + weights[..., expert, None] * ((F.silu(gate) * up) @ mixture.output.weight[expert].T)
    return output


def assert_same(mixture: MixtureOfExperts, x: Tensor) -> None:
    x.requires_grad_()
    wanted = [x, *mixture.parameters()]
    ours, theirs = mixture(x), dense(mixture, x)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    seed = torch.randn_like(ours)
    torch.testing.assert_close(
        torch.autograd.grad(ours, wanted, seed), torch.autograd.grad(theirs, wanted, seed), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("top_k", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("shape", [(2, 8), (3, 5), (1, 1), (1,), (2, 1, 9)], ids=str)
def test_equals_every_expert_on_every_token(top_k: int, shape: tuple[int, ...]) -> None:
    assert_same(build(top_k), torch.randn(*shape, WIDTH, dtype=torch.float64))


@pytest.mark.parametrize("shared", [0, 1, 2])
@pytest.mark.parametrize(("groups", "chosen_groups"), [(1, 1), (2, 1), (4, 2), (4, 4)])
def test_equals_it_for_groups_and_shared_experts(shared: int, groups: int, chosen_groups: int) -> None:
    mixture = build(2, shared=shared, groups=groups, chosen_groups=chosen_groups)
    assert_same(mixture, torch.randn(5, 7, WIDTH, dtype=torch.float64))


def test_experts_without_tokens_get_gradients_of_zero() -> None:
    mixture, x = build(2), torch.randn(3, 5, WIDTH, dtype=torch.float64)
    mixture.router.bias[:6] -= 10
    assert_same(mixture, x)
    mixture(x).sum().backward()
    for part in (mixture.gate, mixture.up, mixture.output):
        grad = part.weight.grad
        assert grad is not None and not grad[:6].any() and grad[6:].flatten(1).any(1).all()


def test_no_token_is_dropped_when_all_choose_one_expert() -> None:
    mixture = build(1, shared=0, scale=1.0)
    mixture.router.bias[3] += 10
    x = torch.randn(2, 50, WIDTH, dtype=torch.float64)
    alone = SwiGLU(WIDTH, HIDDEN).double()
    with torch.no_grad():
        for ours, theirs in ((alone.gate, mixture.gate), (alone.up, mixture.up), (alone.output, mixture.output)):
            ours.weight.copy_(theirs.weight[3])
    torch.testing.assert_close(mixture(x), alone(x), rtol=1e-12, atol=1e-12)


def test_the_bias_has_no_part_in_weights() -> None:
    mixture, x = build(EXPERTS), torch.randn(4, WIDTH, dtype=torch.float64)
    before = mixture(x)
    mixture.router.bias += torch.randn(EXPERTS)
    torch.testing.assert_close(mixture(x), before, rtol=1e-12, atol=1e-12)
    weights = mixture.router(x).weights
    torch.testing.assert_close(weights.sum(-1), torch.full((4,), 2.5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_grouped_kernel_is_given_what_it_takes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU torch has the same call, if slowly: what a GPU runs is tried here, empty experts included."""
    grouped = getattr(F, "grouped_mm", None)
    if grouped is None:
        pytest.skip("torch has no public grouped product before 2.10")
    torch.manual_seed(0)
    load = torch.tensor([3, 0, 4, 0, 1])
    x, weight, seed = torch.randn(8, 16), torch.randn(5, 24, 16), torch.randn(8, 24)
    found = []
    for kernel in (None, grouped):
        monkeypatch.setattr(experts, "_kernel", lambda *_, kernel=kernel: kernel)
        given = [tensor.to(dtype).requires_grad_() for tensor in (x, weight)]
        product = grouped_product(given[0], given[1], load)
        found.append([product, *torch.autograd.grad(product, given, seed.to(dtype))])
    for ours, theirs in zip(*found, strict=True):
        error = (ours - theirs).abs().max() / theirs.abs().max()
        assert error <= 4 * torch.finfo(dtype).eps


def test_a_product_without_kernels_here_takes_the_loop() -> None:
    assert experts._kernel(torch.zeros(1, 8), torch.zeros(1, 8, 8)) is None


def test_experts_without_any_row_have_gradients_of_zeros() -> None:
    """What spreads experts over ranks may leave one of these with none."""
    mixture = build()
    rows = torch.zeros(0, WIDTH, dtype=torch.float64, requires_grad=True)
    outputs = mixture.through_experts(rows, torch.zeros(EXPERTS, dtype=torch.int64))
    assert outputs.shape == (0, WIDTH) and outputs.dtype == torch.float64
    outputs.sum().backward()
    for linear in (mixture.gate, mixture.up, mixture.output):
        grad = linear.weight.grad
        assert grad is not None and grad.shape == linear.weight.shape and not grad.any()


def test_autocast_computes_experts_in_bfloat16_and_scores_in_float32() -> None:
    mixture = build().float()
    x = torch.randn(3, 5, WIDTH)
    seen: list[torch.dtype] = []
    mixture.output.register_forward_hook(lambda _, given, product: seen.append(product.dtype))
    mixture.router.register_forward_hook(lambda _, given, routing: seen.append(routing.weights.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        output = mixture(x)
    assert set(seen) == {torch.float32, torch.bfloat16} and output.dtype == torch.bfloat16
    assert (output - mixture(x)).abs().max() <= 8 * torch.finfo(torch.bfloat16).eps * output.abs().max()
    output.sum().backward()
    grads = [parameter.grad for parameter in mixture.parameters()]
    assert all(grad is not None and grad.dtype == torch.float32 for grad in grads)


def test_bfloat16_is_near_float64_and_leaves_the_bias_alone() -> None:
    mixture = build()
    rounded = copy.deepcopy(mixture).bfloat16()
    assert torch.equal(rounded.router.bias, mixture.router.bias) and rounded.router.bias.dtype == torch.float32
    exact = copy.deepcopy(rounded).double()
    x = torch.randn(3, 5, WIDTH, dtype=torch.bfloat16)
    expected = exact(x.double())
    assert rounded(x).dtype == torch.bfloat16
    assert (rounded(x) - expected).abs().max() <= 8 * torch.finfo(torch.bfloat16).eps * expected.abs().max()


def test_a_build_on_the_meta_device_starts_with_biases_of_zero() -> None:
    with torch.device("meta"):
        mixture = MixtureOfExperts(WIDTH, HIDDEN, EXPERTS, 2)
    mixture = mixture.bfloat16().to_empty(device="cpu")
    assert mixture.router.bias.device.type == "cpu" and mixture.router.bias.dtype == torch.float32
    assert not mixture.router.bias.any()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_sublayer_gives_the_same_counts_once_and_is_compiled_once() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    plain, compiled = build().float(), build().float()
    compiled.compile(backend=counter)
    frames = []
    for seed in range(3):
        x = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(seed))
        for mixture in (plain, compiled):
            mixture(x).square().sum().backward()
        ours, theirs = compiled.router.load, plain.router.load
        assert ours is not None and theirs is not None
        assert torch.equal(ours, theirs) and ours.sum() == 45 * (seed + 1)
        frames.append(counter.frame_count)
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert frames[0] == frames[-1], "other loads are no reason to compile again"
    torch._dynamo.reset()


def test_every_parameter_has_a_role_and_a_size_to_start_with() -> None:
    mixture = MixtureOfExperts(64, 32, EXPERTS, 2)
    roles = parameter_roles(mixture)
    assert roles == {
        "router.matrix.weight": Role.MATRIX,
        "gate.weight": Role.EXPERT_MATRIX,
        "up.weight": Role.EXPERT_MATRIX,
        "output.weight": Role.EXPERT_OUTPUT,
        "shared.gate.weight": Role.MATRIX,
        "shared.up.weight": Role.MATRIX,
        "shared.output.weight": Role.OUTPUT,
    }
    init_weights(mixture, seed=0, output_scale=0.5)
    for name, parameter in mixture.named_parameters():
        scale = 0.5 if "output" in name else 1.0
        assert parameter.std().item() == pytest.approx(scale * parameter.shape[-1] ** -0.5, rel=0.1)
    matrices = mixture.gate.weight.detach()
    assert all((one - other).abs().max() > 0.1 for one, other in itertools.pairwise(matrices))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"width": 0}, "width is 0; it must be a whole number of at least 1"),
        ({"hidden": 0}, "hidden is 0; it must"),
        ({"experts": 0}, "experts is 0; it must"),
        ({"top_k": 0}, "top_k is 0; it must"),
        ({"top_k": 9}, "top_k is 9, and a token has 8 experts to choose from"),
        ({"shared": -1}, "shared is -1; it must be a whole number of experts, 0 for none"),
        ({"scale": 0.0}, "scale is 0.0; the weights need a positive number"),
        ({"groups": 3}, "groups is 3, which does not divide 8 experts"),
        ({"groups": 8}, "groups is 8 for 8 experts; a group needs at least 2"),
        ({"groups": 2, "chosen_groups": 3}, "chosen_groups is 3, and there are 2 groups"),
        ({"groups": 4, "top_k": 3}, "top_k is 3, and a token has 2 experts to choose from"),
    ],
)
def test_sizes_that_cannot_be_are_refused(kind: dict, message: str) -> None:
    sizes = {"width": WIDTH, "hidden": HIDDEN, "experts": EXPERTS, "top_k": 2}
    with pytest.raises(InputError, match=message):
        MixtureOfExperts(**{**sizes, **kind})
