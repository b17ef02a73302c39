"""The findings of a dynamics study as sentences with numbers, no stronger than these allow."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attention_residuals.experiments.arm_runs import ArmRun, Arms, Estimate, estimate
from attention_residuals.experiments.dynamics import shapes

ANSWER = "dynamics"
NOTEWORTHY_P = 0.01


def answer(run: ArmRun) -> dict[str, Any]:
    """What the analysis found of a sound run."""
    found = run.answer(ANSWER)
    assert found is not None, f"{run.path} has no {ANSWER}.json"
    return found


def magnitude(run: ArmRun) -> list[float]:
    """RMS of the running sum after each layer, as the paper's Figure 5 (b)."""
    return shapes.after_layers(answer(run)["carried_rms"])


def gradient(run: ArmRun) -> list[float]:
    """Norm of the loss gradient over the parameters of each layer."""
    return shapes.per_layer(answer(run)["parameter_gradient_norm"])


def dilution(run: ArmRun) -> list[float]:
    """|f_i| / |h_i|, mean of the sublayers of each layer."""
    return shapes.layer_means(answer(run)["dilution"])


def block_size(run: ArmRun) -> int | None:
    """Sublayers a block; None for streams without blocks, and for Full, whose blocks are single sublayers."""
    found = answer(run)["block_sublayers"]
    return found if found is not None and found > 1 else None


def block_series(run: ArmRun, block: int) -> tuple[list[float], int]:
    """Sizes of the running sum, and the period that blocks of so many sublayers would give them.

    Taken after whole layers where blocks are whole layers: attention and MLP differ in size, which is no period.
    """
    return (magnitude(run), block // 2) if block % 2 == 0 else (answer(run)["carried_rms"], block)


def periods(arms: Arms, arm: str, block: int) -> list[shapes.Period]:
    """The period of the block in every sound run of an arm, itself with blocks or not; empty where none can be seen."""
    found = [shapes.period(*block_series(run, block)) for run in arms.of(arm)]
    return [period for period in found if period is not None]


def over_seeds(arms: Arms, arm: str, numbers: Callable[[ArmRun], Sequence[float]], shape: Callable) -> Estimate:
    """A shape of some numbers along the depth, over the seeds of an arm."""
    return arms.over_seeds(arm, lambda run: shape(numbers(run)))


def sentences(arms: Arms) -> Iterator[str]:
    """All findings."""
    yield from _losses(arms)
    yield from _magnitudes(arms)
    yield from _periods(arms)
    yield from _gradients(arms)
    yield from _dilutions(arms)


def _losses(arms: Arms) -> Iterator[str]:
    reference = arms.names[0]
    for arm in arms.names[1:]:
        differences = arms.paired_differences(arm)
        if not differences:
            continue
        found = estimate(differences)
        text = found.text(4, signed=True)
        if found.half_width is None:
            yield f"{arm} ends {text} nats a token from {reference} (one seed: no interval)."
        elif abs(found.mean) <= found.half_width:
            yield f"The final losses of {arm} and {reference} cannot be told apart ({text} nats a token)."
        else:
            word = "lower" if found.mean < 0 else "higher"
            yield f"{arm} ends with a {word} validation loss than {reference} ({text} nats a token)."


def _magnitudes(arms: Arms) -> Iterator[str]:
    for arm in arms.names:
        growth = over_seeds(arms, arm, magnitude, shapes.growth).text(1)
        slope = over_seeds(arms, arm, magnitude, shapes.slope).text()
        yield (
            f"{arm}: the running sum after the last layer is {growth} times that after the first; its RMS goes with "
            f"depth to the power {slope}."
        )


def _periods(arms: Arms) -> Iterator[str]:
    for arm in arms.names:
        block = block_size(arms.first(arm))
        found = periods(arms, arm, block) if block is not None else []
        if block is None or not found:
            continue
        word = "repeats" if max(period.p_value for period in found) < NOTEWORTHY_P else "is not shown to repeat"
        means = [shapes.block_means(*block_series(run, block)) for run in arms.of(arm)]
        yield (
            f"{arm}: the running sum {word} with the period of the block, {block} sublayers: the place in the block "
            f"explains {estimate([period.explained for period in found]).text()} of the variance of its logarithm "
            f"(chance {found[0].by_chance:.2f}, largest p {max(period.p_value for period in found):.1g}); block means "
            f"differ by a factor of {estimate([shapes.spread(row) for row in means]).text(1)}."
        )


def _gradients(arms: Arms) -> Iterator[str]:
    for arm in arms.names:
        variation = over_seeds(arms, arm, gradient, shapes.variation).text()
        spread = over_seeds(arms, arm, gradient, shapes.spread).text(1)
        yield (
            f"{arm}: gradients of layers spread over depth with a coefficient of variation of {variation} (largest "
            f"over smallest {spread})."
        )


def _dilutions(arms: Arms) -> Iterator[str]:
    for arm in arms.names:
        first, last = (over_seeds(arms, arm, dilution, take) for take in (lambda row: row[0], lambda row: row[-1]))
        yield (
            f"{arm}: in the first layer an output is {first.text()} times the size of what its sublayer read, in the "
            f"last {last.text()} times."
        )
