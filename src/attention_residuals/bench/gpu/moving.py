"""Problems, which are drawn on the CPU, moved to the device."""

from torch import Tensor

from attention_residuals.bench.problems import Problem


def on_device(problem: Problem, device: str) -> Problem:
    """The same problem there. What is there already stays the same tensor, as the parameters of a stream must."""

    def moved(tensor: Tensor) -> Tensor:
        return tensor if tensor.device.type == device else tensor.detach().to(device).requires_grad_()

    return Problem(
        leaves=[moved(leaf) for leaf in problem.leaves],
        vectors=[moved(vector) for vector in problem.vectors],
        incoming=[grad.to(device) for grad in problem.incoming],
        oracle=problem.oracle,
        source_reads=problem.source_reads,
    )
