"""What depth maps say, as numbers: where reads look, how large ranks are, whether weight means worth."""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from attention_residuals.experiments.arm_runs import ArmRun, Arms

ANSWER = "depth"

Rows: TypeAlias = Sequence[Sequence[float]]
"""Numbers of reads over their sources, reads in order of depth."""


@dataclass(frozen=True)
class ReadHabits:
    """Means over some reads of at least two sources.

    `newest`, `embedding`: weight of the latest source and of the embedding. `equal`: what each source would have.
    `newest_first`: share of reads in which the latest source has the largest weight.
    """

    reads: int
    newest: float
    embedding: float
    equal: float
    newest_first: float


def answer(run: ArmRun) -> dict[str, Any]:
    """What the analysis found of a sound run."""
    found = run.answer(ANSWER)
    assert found is not None, f"{run.path} has no {ANSWER}.json"
    return found


def habits(rows: Rows) -> ReadHabits | None:
    """Where reads look; None if none of them has a choice."""
    chosen = [row for row in rows if len(row) > 1]
    if not chosen:
        return None
    return ReadHabits(
        reads=len(chosen),
        newest=statistics.fmean(row[-1] for row in chosen),
        embedding=statistics.fmean(row[0] for row in chosen),
        equal=statistics.fmean(1 / len(row) for row in chosen),
        newest_first=statistics.fmean(row[-1] == max(row) for row in chosen),
    )


def by_sublayer(rows: Rows) -> dict[str, Rows]:
    """The reads in front of attention and MLP apart, without that of the head, which comes last."""
    *reads, _ = rows
    return {"pre-attention": reads[0::2], "pre-MLP": reads[1::2]}


def sink(rows: Rows) -> tuple[int, float] | None:
    """The source that most exceeds an equal share in the reads where it is not the latest: its number and the mean of
    weight times number of sources. None where no source is read later on. Sources of fewer than three reads are passed.
    """
    found = []
    for source in range(max(map(len, rows))):
        later = [row[source] * len(row) for row in rows if len(row) > source + 1]
        if len(later) >= 3:
            found.append((source, statistics.fmean(later)))
    return max(found, key=lambda pair: pair[1]) if found else None


def masked_pairs(masking: dict[str, Any], key: str) -> list[tuple[float, float]]:
    """`weights` or `shares` of a source in a read, with the effect of masking it there, for all that can be masked."""
    return [
        (value, effect)
        for values, effects in zip(masking[key], masking["effects"], strict=True)
        for value, effect in zip(values, effects, strict=True)
        if effect is not None
    ]


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's; None where one side is constant, as the weights of the standard residual are."""
    from scipy.stats import rankdata

    one, other = zip(*pairs, strict=True) if pairs else ((), ())
    if len(pairs) < 3 or len(set(one)) < 2 or len(set(other)) < 2:
        return None
    return statistics.correlation(rankdata(one).tolist(), rankdata(other).tolist())


def read_name(read: int, reads: int) -> str:
    """A read (0-based, of so many) in words; the last is that of the head."""
    if read == reads - 1:
        return "head"
    return f"layer {read // 2 + 1} {'MLP' if read % 2 else 'attention'}"


def largest_effects(
    masking: dict[str, Any], sources: Sequence[str], count: int, names: Sequence[str] | None = None
) -> list[list[str]]:
    """The pairs whose masking costs most: read, source, weight, share, effect and twice its standard error.

    `names` are those of the reads; None: those of a network of attention and MLP in turn.
    """
    triples = [
        (effect, read, source)
        for read, effects in enumerate(masking["effects"])
        for source, effect in enumerate(effects)
        if effect is not None
    ]
    rows = []
    for effect, read, source in itertools.islice(sorted(triples, reverse=True), count):
        error = masking["errors"][read][source]
        shown = f"{effect:+.4f}" + ("" if error is None else f" ± {2 * error:.4f}")
        name = read_name(read, len(masking["effects"])) if names is None else names[read]
        weight, share = (masking[key][read][source] for key in ("weights", "shares"))
        rows.append([name, sources[source], f"{weight:.3f}", f"{share:.3f}", shown])
    return rows


def sentences(arms: Arms) -> Iterator[str]:
    """All findings, from the first seed of each arm."""
    for arm in arms.names:
        found = answer(arms.first(arm))
        yield from _read_sentences(arm, found)
        yield from _rank_sentences(arm, found)
        yield from _masking_sentences(arm, found)


def _read_sentences(arm: str, found: dict[str, Any]) -> Iterator[str]:
    if found["reads"] is None:
        return
    rows, entropies = found["reads"]["weights"], found["reads"]["entropy_shares"][:-1]
    told = []
    for (name, part), shares in zip(by_sublayer(rows).items(), (entropies[0::2], entropies[1::2]), strict=True):
        seen = habits(part)
        if seen is not None:
            chosen = [share for share, row in zip(shares, part, strict=True) if len(row) > 1]
            told.append(
                f"{name} reads give {seen.newest:.2f} to the latest source and {seen.embedding:.2f} to the embedding "
                f"(equal shares {seen.equal:.2f}), with {statistics.fmean(chosen):.2f} of the largest entropy"
            )
    if told:
        yield f"{arm}: {'; '.join(told)}."
    if (deepest := sink(rows)) is not None:
        source, excess = deepest
        yield (
            f"{arm}: of sources that are not the latest, {found['sources'][source]} attracts most weight, "
            f"{excess:.1f} times an equal share."
        )


def _rank_sentences(arm: str, found: dict[str, Any]) -> Iterator[str]:
    ranks = found["ranks"]
    if ranks is None:
        yield f"{arm}: its reads are no weighted sums of outputs, so it has no depth mixing matrix."
        return
    least, most = ranks["token_least"][-1], ranks["token_most"][-1]
    exact = str(least) if least == most else f"{least} to {most}"
    n = ranks["tolerances"].index(0.01)
    yield (
        f"{arm}: semiseparable rank {exact} in single tokens (float64), {ranks['token_mean'][n]:.1f} counting singular "
        f"values above a hundredth of the largest; at most {ranks['largest_possible']} are possible."
    )


def _masking_sentences(arm: str, found: dict[str, Any]) -> Iterator[str]:
    masking = found["masking"]
    if masking is None:
        return
    correlations = [
        f"{value:+.2f} with the {word}"
        for key, word in (("weights", "weight"), ("shares", "share of the mixture"))
        if (value := rank_correlation(masked_pairs(masking, key))) is not None
    ]
    if correlations:
        told = " and ".join(correlations)
        yield f"{arm}: the effect of masking a source in one read has a rank correlation of {told}."
    everywhere = [(effect, n) for n, effect in enumerate(masking["everywhere"]) if effect is not None]
    if everywhere:
        effect, n = max(everywhere)
        yield f"{arm}: masked in every read, {found['sources'][n]} costs most: {effect:+.3f} nats a token."
