"""The report of a dynamics study, from its folder alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from attention_residuals.experiments.arm_runs import Arms, estimate, read_arms
from attention_residuals.experiments.document import Figure, Heading, Paragraph, Part, Table, write_document
from attention_residuals.experiments.dynamics import paper, shapes
from attention_residuals.experiments.dynamics.figures import draw_all
from attention_residuals.experiments.dynamics.findings import (
    answer,
    block_size,
    gradient,
    magnitude,
    over_seeds,
    periods,
    sentences,
)

TITLE = "Along the depth: loss, sizes, gradients"

ALTERNATIVES = {
    "loss.png": "validation loss against tokens, and its difference to the first model",
    "magnitude.png": "size of the running sum by layer, the paper's, and size of each output",
    "gradient.png": "gradient norm by layer, the paper's, and at each output",
    "dilution.png": "size of each output against what its readers see",
    "training.png": "size of the running sum by layer over the course of training",
}
NOTES = {
    "loss.png": "Validation losses in mid-schedule; equal initial weights and equal batches for each seed.",
    "magnitude.png": (
        "Read off validation windows with the final weights. The running sum is the stream itself, or the partial sum "
        "of the open block; with Full it is the output alone. Dotted lines are block boundaries. The paper's numbers "
        "are of another size and architecture: the shape is to be compared, not the height."
    ),
    "gradient.png": (
        "Norm of the gradient of the mean loss: over the parameters of each layer, and at each sublayer's output. The "
        "paper does not say of which tensor its gradients are."
    ),
    "dilution.png": (
        "f is the output of a sublayer, h what it read, un-normed. Left: |f| / |h| at the sublayer itself. Middle and "
        "right: the size of f with its weight in the mixture of the next read, and of the head, against that mixture. "
        "Ratios are taken token by token, then averaged. A stream whose mixture is no weighted sum of outputs, as that "
        "of post-norm, has no shares."
    ),
    "training.png": "From training batches, lines from dark to light as training goes on; first seed of each model.",
}


def write_report(folder: Path) -> Path:
    """Draw the figures of the study in `folder` and write `report.html` and `report.md`; the path of the page.

    Raises:
        InputError: it is no study, or none of its runs has ended soundly.
    """
    arms = read_arms(folder)
    figures = draw_all(arms, folder)
    parts: list[Part] = [Paragraph(_setting(arms)), *_faults(arms)]
    parts += [Paragraph(text, strong=True) for text in sentences(arms)]
    tables = {
        "loss.png": _loss_tables(arms),
        "magnitude.png": [
            _shape_table(arms, magnitude, paper.MAGNITUDE),
            *_period_table(arms),
            _sublayers(arms, ("carried_rms", "output_rms")),
        ],
        "gradient.png": [
            _shape_table(arms, gradient, paper.GRADIENT),
            _sublayers(arms, ("parameter_gradient_norm", "output_gradient_norm")),
        ],
        "dilution.png": [_sublayers(arms, ("dilution", "next_share", "head_share"))],
        "training.png": [],
    }
    headings = {
        "loss.png": "Validation loss",
        "magnitude.png": "Output magnitude",
        "gradient.png": "Gradient magnitude",
        "dilution.png": "Dilution",
        "training.png": "Magnitude over training",
    }
    for name in figures:
        parts += [Heading(headings[name]), Figure(name, ALTERNATIVES[name]), Paragraph(NOTES[name], note=True)]
        parts += tables[name]
    return write_document(folder, TITLE, parts)


def _setting(arms: Arms) -> str:
    run = arms.first(arms.names[0])
    model, data = run.config["config"]["model"], run.config["data"]
    tokens = run.curve[-1]["tokens"] if run.curve else 0
    seeds = len({run.seed for run in arms.runs})
    return (
        f"{len(arms.names)} models of {model['layers']} layers and width {model['width']} "
        f"({run.config['parameters']:,} parameters), {tokens:,} tokens each "
        f"({tokens / run.config['parameters']:.1f} a parameter, {tokens / data['training_tokens']:.2f} passes), "
        f"{seeds} {'seed' if seeds == 1 else 'seeds'}, on {data['source']}; peak rate {_rates(arms)}. ± is half of a "
        "95 % interval over seeds (Student's t)."
    )


def _rates(arms: Arms) -> str:
    """The first model's peak learning rate, and those of models that have another."""
    rates = {arm: arms.first(arm).config["config"]["optimizer"]["learning_rate"] for arm in arms.names}
    shared = rates[arms.names[0]]
    others = [f"that of {arm} {rate:g}" for arm, rate in rates.items() if rate != shared]
    return ", ".join([f"{shared:g}", *others])


def _faults(arms: Arms) -> list[Part]:
    return [Paragraph(f"{run.path.name} is left out: {run.fault}.", strong=True) for run in arms.faulty]


def _loss_tables(arms: Arms) -> list[Part]:
    seeds = sorted({run.seed for run in arms.runs})
    rows = []
    for arm in arms.names:
        found = {run.seed: run.final["validation_loss"] for run in arms.of(arm) if run.final is not None}
        differences = arms.paired_differences(arm) if arm != arms.names[0] else []
        difference = estimate(differences).text(4, signed=True) if differences else ""
        single = [f"{found[seed]:.4f}" if seed in found else "" for seed in seeds]
        rows.append((arm, f"{sum(found.values()) / len(found):.4f}", difference, *single))
    header = ("model", "validation loss, nats a token", f"minus {arms.names[0]}'s", *(f"seed {seed}" for seed in seeds))
    theirs = [
        (f"{step:,}", f"{standard:.4f}", f"{block:.4f}", f"{block - standard:+.4f}")
        for step, (standard, block) in paper.VALIDATION_LOSS.items()
    ]
    return [
        Table(header, rows),
        Table(("step", "standard", "block", "difference"), theirs, "The paper's validation losses, 48 B parameters"),
    ]


def _shape_table(arms: Arms, numbers, theirs: Mapping[str, Sequence[float]]) -> Part:
    """Shapes of numbers of layers, the paper's under ours."""
    measures = (shapes.growth, shapes.spread, shapes.slope, shapes.variation)
    rows = [[arm, *(over_seeds(arms, arm, numbers, shape).text() for shape in measures)] for arm in arms.names]
    rows += [[f"paper: {name}", *(f"{shape(values):.2f}" for shape in measures)] for name, values in theirs.items()]
    header = ("model", "last / first", "largest / smallest", "power of depth", "coefficient of variation")
    return Table(header, rows)


def _period_table(arms: Arms) -> list[Part]:
    """Whether the running sum has the period of a block, of arms with and without; none if no arm has blocks."""
    sizes = {block_size(arms.first(arm)) for arm in arms.names} - {None}
    found = {(arm, block): periods(arms, arm, block) for block in sorted(filter(None, sizes)) for arm in arms.names}
    rows = []
    for (arm, block), seen in found.items():
        if seen:
            explained, lagged = (
                estimate([getattr(period, key) for period in seen]).text() for key in ("explained", "autocorrelation")
            )
            largest_p = max(period.p_value for period in seen)
            rows.append([arm, str(block), explained, f"{seen[0].by_chance:.2f}", f"{largest_p:.1g}", lagged])
    theirs = {name: shapes.period(values, paper.BLOCK_LAYERS) for name, values in paper.MAGNITUDE.items()}
    for name, period in theirs.items():
        if rows and period is not None:
            numbers = (f"{period.explained:.2f}", f"{period.by_chance:.2f}", f"{period.p_value:.1g}")
            rows.append([f"paper: {name}", "6", *numbers, f"{period.autocorrelation:.2f}"])
    header = ("model", "sublayers a block", "explained by place in block", "by chance", "largest p", "autocorrelation")
    return [Table(header, rows)] if rows else []


def _sublayers(arms: Arms, keys: Sequence[str]) -> Part:
    """Numbers of every sublayer, first seed of each arm."""
    found = {arm: answer(arms.first(arm)) for arm in arms.names}
    columns = [(arm, key) for arm in arms.names for key in keys if found[arm][key] is not None]
    count = max(len(found[arm][key]) for arm, key in columns)
    rows = [
        [str(i + 1), *(f"{found[arm][key][i]:.3g}" if i < len(found[arm][key]) else "" for arm, key in columns)]
        for i in range(count)
    ]
    header = ["sublayer", *(f"{arm}: {key.replace('_', ' ')}" for arm, key in columns)]
    return Table(header, rows, "Every sublayer as numbers")
