"""What a training framework asks of the kernels beside right numbers: graphs, the compiler, the same bits, no variants.

Each function answers in words what it found, and raises `WrongError` where that is wrong.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attention_residuals.bench.gpu.moving import on_device
from attention_residuals.bench.problems import EPS, differentiate
from attention_residuals.bench.reads import block_in_two_phases, block_problem, read_problem, single_read
from attention_residuals.ops import attn_res
from attention_residuals.streams import AttnRes, Sublayers

MOST_VARIANTS = 3
"""Compiled forms of all kernels of a read together, for one width and type and any number of sources."""


class WrongError(Exception):
    """What was found is not as it must be."""


def same_bits(device: str, dtype: torch.dtype, width: int) -> str:
    """Forward and backward of a read and of a block, twice."""
    problems = {
        single_read: on_device(read_problem(8, 70, width, dtype), device),
        block_in_two_phases(8): on_device(block_problem(8, 3, 70, width, dtype), device),
    }
    for computation, problem in problems.items():
        first, second = (differentiate(computation, problem) for _ in range(2))
        for n, (one, other) in enumerate(zip(first, second, strict=True)):
            if one is None or other is None or not torch.equal(one, other):
                raise WrongError(f"{problem.name(n)} has other bits the second time")
    return "the same bits twice"


def cuda_graph(device: str, dtype: torch.dtype, width: int) -> str:
    """Forward and backward of a read and of a block captured once, replayed with other inputs."""
    for computation, problem, changed in (
        (single_read, read_problem(8, 70, width, dtype), range(1)),
        (block_in_two_phases(8), block_problem(8, 3, 70, width, dtype), range(2)),
    ):
        here = on_device(problem, device)
        run, results = capture(lambda computation=computation, here=here: differentiate(computation, here))
        for n in changed:
            with torch.no_grad():
                for tensor in (*here.leaves, *here.vectors, *here.incoming):
                    tensor.copy_(tensor.flip(0) if n == 0 else 0.5 * tensor)
            run()
            torch.cuda.synchronize()
            replayed = [None if one is None else one.clone() for one in results]
            for one, other in zip(replayed, differentiate(computation, here), strict=True):
                if one is None or other is None or not torch.equal(one, other):
                    raise WrongError("a replayed graph gives other bits than the same calls")
    return "captured, replayed with other inputs"


def capture(task: Callable[[], Sequence[Tensor | None]]) -> tuple[Callable[[], None], Sequence[Tensor | None]]:
    """What replays `task`, and the tensors it writes into."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # compiled and tuned before the capture
            task()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = task()
    return graph.replay, results


def compiled_block(device: str, dtype: torch.dtype, width: int) -> str:
    """Two blocks of a stream through `torch.compile(fullgraph=True)`, forward and backward."""
    stream = AttnRes(Sublayers(2), key_eps=EPS).build(4, width).to(device, dtype)
    with torch.no_grad():
        for name, parameter in stream.named_parameters():
            if "queries" in name:
                parameter.copy_(torch.randn(width, device=device) / width**0.5)
    embedding = torch.randn(2, 35, width, device=device).to(dtype).requires_grad_()

    def walk(embedding: Tensor) -> Tensor:
        state = stream.start(embedding)
        for i in range(4):
            state = stream.write(state, i, torch.tanh(stream.read(state, i)))
        return stream.finish(state)

    inputs = [embedding, *stream.parameters()]
    grad = torch.randn_like(embedding)
    results = []
    for run in (walk, torch.compile(walk, fullgraph=True)):
        output = run(embedding)
        results.append([output, *torch.autograd.grad(output, inputs, grad)])
    worst = max(
        ((one - other).norm() / other.norm().clamp_min(1e-30)).item() for one, other in zip(*results, strict=True)
    )
    if not worst <= 16 * torch.finfo(dtype).eps:
        raise WrongError(f"compiled and eager differ by {worst:.1e} of a norm")
    return f"one graph, as eager to {worst:.0e}"


def count_variants(device: str, dtype: torch.dtype, width: int, sweep: Sequence[int]) -> str:
    """How many forms of the kernels a read's forward and backward compile over `sweep` numbers of sources."""
    clear_variants()
    query = torch.randn(width, device=device, requires_grad=True)
    for count in sweep:
        sources = [torch.randn(70, width, device=device).to(dtype).requires_grad_() for _ in range(count)]
        attn_res(sources, query, eps=EPS).sum().backward()
    found = variants()
    if not found:
        raise WrongError("this Triton does not tell what it compiled")
    words = ", ".join(f"{name} {number}" for name, number in found.items() if number)
    reading = sum(number for name, number in found.items() if name != "write_table_kernel")
    if reading > MOST_VARIANTS or found.get("write_table_kernel", 0) > 1:
        raise WrongError(f"{words} for {len(sweep)} numbers of sources, allowed are {MOST_VARIANTS} and one table's")
    return words


def variants() -> dict[str, int]:
    """Compiled forms of each kernel of this package, so far as this version of Triton tells."""
    from attention_residuals.ops.gpu import kernels

    found = {}
    for name, kernel in vars(kernels).items():
        caches = getattr(kernel, "device_caches", None)
        if name.endswith("_kernel") and caches is not None:
            found[name] = sum(_size(entry) for entry in caches.values())
    return found


def clear_variants() -> None:
    """Forget what was compiled in this process."""
    from attention_residuals.ops.gpu import kernels

    for kernel in vars(kernels).values():
        caches = getattr(kernel, "device_caches", None)
        if caches is not None:
            caches.clear()


def _size(entry: object) -> int:
    """Of what Triton keeps for a device: a dictionary of kernels, or a tuple that begins with it."""
    first = entry[0] if isinstance(entry, tuple) and entry else entry
    return len(first) if isinstance(first, dict) else 0
