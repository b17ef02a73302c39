"""What a conversion came to."""

from dataclasses import dataclass

from attention_residuals.retrofit.settings import NAME, Settings
from attention_residuals.streams import AttnResStream


@dataclass(frozen=True)
class StackReport:
    """One converted stack.

    Args:
        name: the submodule with its depth parameters.
        description: its blocks, in words.
        sources: how many sources each read has, the one of the final norm last.
        parameters: how many were added.
    """

    name: str
    description: str
    sources: tuple[int, ...]
    parameters: int


@dataclass(frozen=True)
class Report:
    """A conversion, and how exact it was on the sample.

    Args:
        architecture: class of the model.
        stacks: those converted.
        parameters: how many the model had before.
        output_difference: the largest, relative to the largest logit (or hidden state, of a model without a head).
        gradient_difference: the largest of a parameter's gradient, relative to it; None if it was not measured.
        tolerance: the output difference above which the conversion would have been refused.
    """

    architecture: str
    stacks: tuple[StackReport, ...]
    parameters: int
    output_difference: float
    gradient_difference: float | None
    tolerance: float

    @property
    def added_parameters(self) -> int:
        """Depth parameters of all stacks."""
        return sum(stack.parameters for stack in self.stacks)

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The report as lines of text."""
        share = self.added_parameters / self.parameters
        gradients = "not measured" if self.gradient_difference is None else f"{self.gradient_difference:.1e}"
        rows = [("architecture", self.architecture)]
        for stack in self.stacks:
            rows += [(stack.name, stack.description), ("  sources per read", _runs(stack.sources))]
        rows += [
            ("added parameters", f"{self.added_parameters:,} ({share:.3%} of {self.parameters:,})"),
            ("outputs", f"{self.output_difference:.1e} of the largest (allowed {self.tolerance:.1e})"),
            ("gradients", gradients if self.gradient_difference is None else f"{gradients} relative"),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def report_stack(name: str, stream: AttnResStream) -> StackReport:
    """The report of one stack; `name` is that of the submodule."""
    cut = stream.reads.partition
    return StackReport(
        name=name,
        description=stream.describe(),
        sources=tuple(cut.sources(i) for i in range(cut.sublayers + 1)),
        parameters=sum(parameter.numel() for parameter in stream.parameters()),
    )


def submodule_names(settings: Settings) -> tuple[str, ...]:
    """Where the depth parameters of each stack are."""
    return tuple(f"{stack.name}.{NAME}" if stack.name else NAME for stack in settings.stacks)


def _runs(counts: tuple[int, ...]) -> str:
    """Equal neighbours as `count x times`."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    if len(runs) == len(counts):
        return f"{counts[0]} to {counts[-1]}"
    return ", ".join(f"{count}" if times == 1 else f"{count} x{times}" for count, times in runs)
