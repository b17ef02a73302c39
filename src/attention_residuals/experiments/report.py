"""One self-contained HTML page of a comparison: figures, the tables under them, text samples, settings."""

import base64
import html
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from attention_residuals.experiments.document import CSS_PIXELS_PER_INCH, DOTS_PER_INCH, STYLE
from attention_residuals.experiments.figures import draw_all
from attention_residuals.experiments.results import Comparison, Difference, Run, read_comparison

PAGE_STYLE = f"""{STYLE}
pre {{ background: #f5f5f5; padding: 0.8rem; overflow-x: auto; font-size: 0.82rem; white-space: pre-wrap; }}
.samples {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 1rem; }}
"""

DYNAMICS_NOTE = (
    "<p class=note>Read off one training batch with the final weights. In a standard residual the running sum is the "
    "stream itself; in Block it is the partial sum of the open block, in Full the output alone.</p>"
)
DEPTH_NOTE = (
    "<p class=note>Weight of each source (columns) in each read (rows), mean over the tokens of one training batch. "
    "The last row is the read in front of the head. Inside a block the last source is its partial sum.</p>"
)


def write_report(folder: Path) -> Path:
    """Draw the figures of the comparison in `folder` and write `report.html` there; returns its path."""
    comparison = read_comparison(folder)
    figures = draw_all(comparison, folder / "figures")
    path = folder / "report.html"
    path.write_text(page(comparison, figures), encoding="utf-8")
    return path


def page(comparison: Comparison, figures: dict[str, Path]) -> str:
    """The page as one string."""
    parts = [
        "<h1>Residual streams compared</h1>",
        *_verdict(comparison),
        "<h2>Results</h2>",
        _results_table(comparison),
        _results_notes(comparison),
        "<h2>Loss</h2>",
        _image(figures["loss"], "loss against tokens and against training time"),
        _details("Validation losses as numbers", _curve_table(comparison)),
    ]
    if "difference" in figures:
        parts += [
            "<h2>Paired difference</h2>",
            _image(figures["difference"], "paired difference of validation loss with its interval"),
            _difference_table(comparison),
        ]
    parts += [
        "<h2>Along the depth</h2>",
        _image(figures["dynamics"], "sizes of outputs and gradients for each sublayer"),
        DYNAMICS_NOTE,
        _details("Sizes as numbers", _dynamics_table(comparison)),
    ]
    depth = [model for model in comparison.models if f"depth-{model}" in figures]
    if depth:
        parts += ["<h2>Where each sublayer reads</h2>", DEPTH_NOTE]
    for model in depth:
        parts.append(_image(figures[f"depth-{model}"], f"depth weights of {model}"))
        parts.append(_details(f"Weights of {model} as numbers", _depth_table(_first_run(comparison, model))))
    parts += [
        "<h2>Text samples</h2>",
        f"<div class=samples>{''.join(_sample(_first_run(comparison, model)) for model in comparison.models)}</div>",
        "<h2>Settings</h2>",
        *(_settings(_first_run(comparison, model)) for model in comparison.models),
    ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Residual streams compared</title>'
        f"<style>{PAGE_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def sentence(found: Difference, model: str, reference: str) -> str:
    """A difference in words, no stronger than its interval allows."""
    interval = f"{found.mean:+.4f} ± {found.half_width:.4f} nats a byte"
    if abs(found.mean) <= found.half_width:
        return f"{model} and {reference} cannot be told apart ({interval})."
    word = "lower" if found.mean < 0 else "higher"
    return f"{model} ends with a {word} loss than {reference} ({interval})."


def _verdict(comparison: Comparison) -> Iterable[str]:
    run = _first_run(comparison, comparison.reference)
    data, config, tokens = run.config["data"], run.config["config"], run.steps[-1]["tokens"]
    yield (
        f"<p>{len(comparison.models)} models of {config['model']['layers']} layers, "
        f"{tokens:,} tokens each ({tokens / run.config['parameters']:.1f} a parameter, "
        f"{tokens / data['training_bytes']:.2f} passes over the text), on {html.escape(data['source'])}. "
        "Same initial weights in every shared parameter, same batches in the same order.</p>"
    )
    found = [(model, comparison.difference(model)) for model in comparison.models[1:]]
    yield "".join(f"<p><b>{html.escape(sentence(item, model, comparison.reference))}</b></p>" for model, item in found)
    if found and found[0][1].over == "windows":
        yield (
            "<p class=note>One seed: the 95 % interval is over windows of validation text. It says how far this pair "
            "of models differs on more such text, and nothing about other seeds: for that, <code>--seeds 0 1 2</code>."
            "</p>"
        )
    elif found:
        yield f"<p class=note>95 % intervals over {len(comparison.seeds)} paired seeds (Student's t).</p>"
    for model in comparison.models:
        entropy = data["unigram_entropy"]
        if comparison.mean(model, "validation_loss") >= entropy:
            yield f"<p><b>{html.escape(model)} has not learned more than byte frequencies ({entropy:.3f} nats).</b></p>"


def _results_table(comparison: Comparison) -> str:
    header = (
        "model",
        "parameters",
        "validation loss, nats a byte",
        "bits a byte",
        f"difference to {comparison.reference}",
        "tokens/s (quartiles)",
        "relative speed",
        "peak training memory",
        f"loss after {comparison.reference}'s time",
    )
    speed = {model: _mean([run.tokens_per_second[1] for run in comparison.of(model)]) for model in comparison.models}
    rows = []
    for model in comparison.models:
        run = _first_run(comparison, model)
        low, _, high = run.tokens_per_second
        difference = "" if model == comparison.reference else _signed(comparison.difference(model))
        peak = run.config["peak_training_bytes"]
        rows.append(
            (
                model,
                f"{run.config['parameters']:,}",
                f"{comparison.mean(model, 'validation_loss'):.4f}",
                f"{comparison.mean(model, 'validation_bits_per_byte'):.4f}",
                difference,
                f"{speed[model]:,.0f} ({low:,.0f} to {high:,.0f})",
                f"{speed[model] / speed[comparison.reference]:.2f}",
                "not measured" if peak is None else f"{peak / 2**20:,.0f} MiB",
                _loss_at_equal_time(comparison, model),
            )
        )
    return _table(header, rows)


def _loss_at_equal_time(comparison: Comparison, model: str) -> str:
    losses = []
    for seed in comparison.seeds:
        seconds = comparison.runs[comparison.reference, seed].steps[-1]["seconds"]
        losses.append(comparison.runs[model, seed].validation_loss_after(seconds))
    return "-" if None in losses else f"{_mean([loss for loss in losses if loss is not None]):.4f}"


def _results_notes(comparison: Comparison) -> str:
    run = _first_run(comparison, comparison.reference)
    interval = run.config["config"]["evaluation_tokens"]
    return (
        f"<p class=note>Final validation loss over {run.final['validation_tokens']:,} tokens. Speed: the runs take "
        f"turns step by step on {run.config['config']['device']} with {run.config['threads']} threads; quartiles over "
        f"the steps of the first seed. Peak memory: of a training process of its own, above what it held before the "
        f"model was built. The last column is the validation loss (over {interval:,} tokens, in mid-schedule for a "
        f"slower model, whose rate had not come down yet) when {html.escape(comparison.reference)} was done.</p>"
    )


def _difference_table(comparison: Comparison) -> str:
    header = ("model", "difference", "95 % interval over", *(f"seed {seed}" for seed in comparison.seeds))
    rows = [
        (model, _signed(found), found.over, *(f"{value:+.4f}" for value in found.by_seed))
        for model in comparison.models[1:]
        for found in [comparison.difference(model)]
    ]
    return _table(header, rows)


def _curve_table(comparison: Comparison) -> str:
    runs = [_first_run(comparison, model) for model in comparison.models]
    rows = [
        (f"{marks[0]['step']:,}", f"{marks[0]['tokens']:,}", *(f"{mark['validation_loss']:.4f}" for mark in marks))
        for marks in zip(*(run.validation_curve for run in runs), strict=True)
    ]
    return _table(("step", "tokens", *comparison.models), rows)


def _dynamics_table(comparison: Comparison) -> str:
    keys = {
        "output_rms": "output RMS",
        "carried_rms": "running sum RMS",
        "output_gradient_norm": "output gradient",
        "parameter_gradient_norm": "parameter gradient",
    }
    header = ("sublayer", *(f"{model}: {label}" for model in comparison.models for label in keys.values()))
    probes = [_first_run(comparison, model).probe for model in comparison.models]
    count = len(probes[0]["output_rms"])
    rows = [(str(i + 1), *(f"{probe[key][i]:.3g}" for probe in probes for key in keys)) for i in range(count)]
    return _table(header, rows)


def _depth_table(run: Run) -> str:
    weights, sources = run.probe["depth_weights"], run.probe["source_names"]
    names = [f"layer {i // 2 + 1} {'MLP' if i % 2 else 'attention'}" for i in range(len(weights) - 1)]
    rows = [
        (name, *(f"{weight:.3f}" for weight in row), *[""] * (len(sources) - len(row)))
        for name, row in zip([*names, "head"], weights, strict=True)
    ]
    return _table(("read", *sources), rows)


def _sample(run: Run) -> str:
    return f"<div><h3>{html.escape(run.name)}</h3><pre>{html.escape(run.sample)}</pre></div>"


def _settings(run: Run) -> str:
    return _details(run.name, f"<pre>{html.escape(json.dumps(run.config, indent=2))}</pre>")


def _signed(found: Difference) -> str:
    spread = "" if math.isinf(found.half_width) else f" ± {found.half_width:.4f}"
    return f"{found.mean:+.4f}{spread}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _first_run(comparison: Comparison, model: str) -> Run:
    return comparison.runs[model, comparison.seeds[0]]


def _image(path: Path, description: str) -> str:
    data = path.read_bytes()
    pixels = int.from_bytes(data[16:20], "big")  # the width in a PNG's header
    width = round(pixels * CSS_PIXELS_PER_INCH / DOTS_PER_INCH)
    encoded = base64.b64encode(data).decode()
    return f'<img alt="{html.escape(description)}" width={width} src="data:image/png;base64,{encoded}">'


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"
