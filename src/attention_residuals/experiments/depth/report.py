"""The report of depth maps, from run folders alone."""

from collections.abc import Iterator
from pathlib import Path

from attention_residuals.experiments.arm_runs import Arms, read_arms
from attention_residuals.experiments.depth import paper
from attention_residuals.experiments.depth.figures import draw_all
from attention_residuals.experiments.depth.findings import (
    Rows,
    answer,
    by_sublayer,
    habits,
    largest_effects,
    masked_pairs,
    rank_correlation,
    read_name,
    sentences,
)
from attention_residuals.experiments.document import Figure, Heading, Paragraph, Part, Table, write_document

TITLE = "Where a network reads over its depth"
MOST_PAIRS = 12

MIXING_NOTE = (
    "Read l is the sum over i of M[l, i] v_i, v_0 being the embedding, v_i the output of sublayer i; the last read is "
    "that of the head. Mean over tokens, sizes of terms. Square-root colours."
)
RANK_NOTE = (
    "Semiseparable rank: the largest rank of a block on or below the diagonal (arXiv 2405.21060, definition 3.1), "
    "counting singular values above the tolerance times the largest of the block. The paper's statements (arXiv "
    "2603.15031, section 6.2): standard and Highway 1, hyper-connections with m streams m, Full dense, Block between "
    "its number of blocks N and N + S. A plain rank says nothing: a triangular matrix without a zero on its diagonal "
    "always has the full one. The mean over tokens of matrices of a small rank may have a larger one."
)
MASKING_NOTE = (
    "One source is left out of one read, all before stays, all after follows; the increase of validation loss is its "
    "effect. With a depth softmax the remaining weights grow in proportion; of other streams the term is missing. The "
    "share of a source is the size of its weighted term against the mixture, token by token. The lowest row leaves the "
    "source out of every read that has another; without a depth softmax that is a sublayer that writes zero."
)
WEIGHTS_NOTE = (
    "Mean over tokens of validation text. Inside a block the last source is its partial sum. The last row is the read "
    "in front of the head. Square-root colours."
)


def write_report(folder: Path) -> Path:
    """Draw the figures of the report in `folder` and write `report.html` and `report.md`; the path of the page.

    Raises:
        InputError: there is nothing to report of.
    """
    arms = read_arms(folder)
    figures = set(draw_all(arms, folder))
    parts: list[Part] = [Paragraph(_setting(arms))]
    parts += [Paragraph(f"{run.path.name} is left out: {run.fault}.", strong=True) for run in arms.faulty]
    parts += [Paragraph(text, strong=True) for text in sentences(arms)]
    if "mixing.png" in figures:
        parts += [Heading("Depth mixing matrices"), Figure("mixing.png", "depth mixing matrix of every model")]
        parts += [Paragraph(MIXING_NOTE, note=True), *_matrix_tables(arms)]
    parts += [Heading("Semiseparable rank"), _rank_table(arms), Paragraph(RANK_NOTE, note=True)]
    if any(answer(arms.first(arm))["reads"] for arm in arms.names):
        parts += [Heading("Depth weights"), _habits_table(arms), Paragraph(WEIGHTS_NOTE, note=True)]
    for arm in arms.names:
        if f"weights-{arm}.png" in figures:
            parts += [Figure(f"weights-{arm}.png", f"depth weights of {arm}"), _weight_table(arms, arm)]
    if any(answer(arms.first(arm))["masking"] for arm in arms.names):
        parts += [Heading("Masking a source"), _correlation_table(arms), Paragraph(MASKING_NOTE, note=True)]
    for arm in arms.names:
        if f"masking-{arm}.png" in figures:
            parts += [Figure(f"masking-{arm}.png", f"weight and effect of each source of {arm}")]
            parts += _masking_tables(arms, arm)
    return write_document(folder, TITLE, parts)


def _setting(arms: Arms) -> str:
    run = arms.first(arms.names[0])
    model, found = run.config["config"]["model"], answer(run)
    text = (
        f"{', '.join(arms.names)}: models of {model['layers']} layers and width {model['width']}, on "
        f"{run.config['data']['source']}. Weights and matrices are means over {found['tokens']:,} tokens of validation "
        "text."
    )
    if any(len(arms.of(arm)) > 1 for arm in arms.names):
        text += " Figures and sentences are of the first seed of each model, tables of ranks and correlations of all."
    return text


def _matrix_tables(arms: Arms) -> Iterator[Part]:
    for arm in arms.names:
        found = answer(arms.first(arm))
        matrix = found["mixing"]
        # With depth weights the matrix repeats them; that of a plain sum needs no table.
        if (
            matrix is not None
            and found["reads"] is None
            and any(value not in (0, 1) for row in matrix for value in row)
        ):
            header = ["read", *map(str, range(len(matrix)))]
            rows = [
                [read_name(n, len(matrix)), *(f"{value:.3f}" for value in row[: n + 1]), *[""] * (len(matrix) - n - 1)]
                for n, row in enumerate(matrix)
            ]
            yield Table(header, rows, f"Matrix of {arm} as numbers")


def _rank_table(arms: Arms) -> Part:
    rows, header = [], ["model", "seed"]
    for arm in arms.names:
        for run in arms.of(arm):
            ranks = answer(run)["ranks"]
            if ranks is None:
                rows.append([arm, str(run.seed), "no matrix"])
                continue
            tokens = zip(ranks["token_least"], ranks["token_mean"], ranks["token_most"], strict=True)
            single = [f"{mean:.1f} ({least} to {most})" for least, mean, most in tokens]
            header = ["model", "seed", *(f"one token, {t:g}" for t in ranks["token_tolerances"])]
            header += [*(f"mean, {t:g}" for t in ranks["tolerances"]), "possible"]
            mean = map(str, ranks["mean_matrix"])
            rows.append([arm, str(run.seed), *single, *mean, str(ranks["largest_possible"])])
    return Table(header, [[*row, *[""] * (len(header) - len(row))] for row in rows])


def _habits_table(arms: Arms) -> Part:
    known: dict[str, Rows] = {}
    for arm in arms.names:
        for run in arms.of(arm):
            reads = answer(run)["reads"]
            if reads is not None:
                known |= {f"{arm}, seed {run.seed}, {n}": part for n, part in by_sublayer(reads["weights"]).items()}
    known |= {"paper, block, pre-attention": paper.BLOCK_ATTENTION, "paper, block, pre-MLP": paper.BLOCK_MLP}
    rows = []
    for name, part in known.items():
        seen = habits(part)
        if seen is not None:
            numbers = (seen.newest, seen.embedding, seen.equal, seen.newest_first)
            rows.append([name, *(f"{number:.3f}" for number in numbers)])
    return Table(("reads", "latest source", "embedding", "equal share", "latest is largest"), rows)


def _weight_table(arms: Arms, arm: str) -> Part:
    found = answer(arms.first(arm))
    weights, entropies, sources = found["reads"]["weights"], found["reads"]["entropy_shares"], found["sources"]
    rows = [
        [
            read_name(n, len(weights)),
            f"{entropy:.2f}",
            *(f"{value:.3f}" for value in row),
            *[""] * (len(sources) - len(row)),
        ]
        for n, (row, entropy) in enumerate(zip(weights, entropies, strict=True))
    ]
    return Table(["read", "entropy share", *sources], rows, f"Weights of {arm} as numbers")


def _correlation_table(arms: Arms) -> Part:
    rows = []
    for arm in arms.names:
        for run in arms.of(arm):
            masking = answer(run)["masking"]
            if masking is not None:
                found = [rank_correlation(masked_pairs(masking, key)) for key in ("weights", "shares")]
                shown = ["-" if value is None else f"{value:+.2f}" for value in found]
                pairs = len(masked_pairs(masking, "weights"))
                rows.append(
                    [arm, str(run.seed), f"{masking['tokens']:,}", f"{masking['loss']:.4f}", str(pairs), *shown]
                )
    header = ("model", "seed", "tokens", "loss", "pairs", "rank correlation with weight", "with share")
    return Table(header, rows)


def _masking_tables(arms: Arms, arm: str) -> list[Part]:
    found = answer(arms.first(arm))
    masking, sources = found["masking"], found["sources"]
    header = ("read", "source", "weight", "share", "effect ± two standard errors")
    effects = [
        [read_name(n, len(masking["effects"])), *("-" if value is None else f"{value:+.4f}" for value in row)]
        for n, row in enumerate(masking["effects"])
    ]
    effects.append(["in all reads", *("-" if value is None else f"{value:+.4f}" for value in masking["everywhere"])])
    padded = [[*row, *[""] * (len(sources) + 1 - len(row))] for row in effects]
    return [
        Table(header, largest_effects(masking, sources, MOST_PAIRS), f"The costliest pairs of {arm}"),
        Table(["read", *sources], padded, f"All effects of {arm} as numbers"),
    ]
