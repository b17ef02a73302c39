"""What every run of a study shares, and the shapes that studies train."""

import dataclasses
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from attention_residuals.configs import to_plain
from attention_residuals.errors import InputError, require_positive
from attention_residuals.experiments.arms import residual_of
from attention_residuals.experiments.compute import training_operations
from attention_residuals.experiments.studies.plan import PlannedRun, States
from attention_residuals.experiments.studies.tuning import RATES, START, Walk, walk
from attention_residuals.models import BYTE_VOCABULARY, SUBLAYERS_PER_LAYER, BackboneConfig, Decoder, DecoderConfig
from attention_residuals.models.meta import without_values
from attention_residuals.streams import Additive, Residual
from attention_residuals.train import AdamW, TextConfig, TrainConfig

Model = TypeVar("Model", bound=BackboneConfig)

BLOCKS = 8
"""About as many as the paper recommends (arXiv 2603.15031, section 3.2)."""

CHECKS_A_RUN = 8
"""Validations with a checkpoint, the last one at the end."""


@dataclass(frozen=True)
class Common:
    """Settings shared by all runs of a study.

    Args:
        text: what to train on, bytes as tokens.
        batch_sequences: sequences a step.
        tokens_per_parameter: length of a run, by the parameters of the baseline, embedding and head included.
        depth_learning_rate: peak rate of what routes over depth. It is no part of the tuning: the baseline has none.
        tuning_seed: of the runs that find the learning rate; not among the seeds that are compared.
        device: where to train.
    """

    text: TextConfig = field(default_factory=TextConfig)
    batch_sequences: int = 8
    tokens_per_parameter: float = 20.0
    depth_learning_rate: float = AdamW().depth_learning_rate
    tuning_seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        require_positive(self, "batch_sequences")
        if not self.tokens_per_parameter > 0:
            raise InputError(f"tokens a parameter are {self.tokens_per_parameter}; give a positive number, such as 20")

    @property
    def step_tokens(self) -> int:
        """Tokens a step."""
        return self.batch_sequences * self.text.sequence_tokens

    def steps(self, model: BackboneConfig) -> int:
        """Steps of every run of a size, by the parameters of its baseline."""
        return max(1, round(self.tokens_per_parameter * count_parameters(model) / self.step_tokens))

    def steps_for(self, operations: float, model: BackboneConfig) -> int:
        """Steps that take about as many `operations` as asked."""
        each = training_operations(to_plain(model), self.text.sequence_tokens, self.step_tokens)
        return max(1, round(operations / each))

    def run(self, name: str, model: BackboneConfig, *, steps: int, seed: int, learning_rate: float) -> TrainConfig:
        """One run's config."""
        every = math.ceil(steps / CHECKS_A_RUN)
        return TrainConfig(
            name=name,
            model=model,
            text=self.text,
            steps=steps,
            seed=seed,
            batch_sequences=self.batch_sequences,
            optimizer=AdamW(learning_rate=learning_rate, depth_learning_rate=self.depth_learning_rate),
            evaluate_every_steps=every,
            evaluation_tokens=8192,
            checkpoint_every_steps=every,
            keep_checkpoints=1,
            device=self.device,
        )

    def require_seeds(self, seeds: tuple[int, ...]) -> None:
        """Refuse seeds that are named twice or that tuned the baseline.

        Raises:
            InputError: they are.
        """
        require_distinct("seed", seeds)
        if self.tuning_seed in seeds:
            raise InputError(
                f"seed {self.tuning_seed} tunes the baseline's learning rate, so comparing with it would favour the "
                "baseline; compare other seeds, such as 1 2 3"
            )


@lru_cache
def count_parameters(model: BackboneConfig) -> int:
    """Parameters of a decoder, all of them."""
    with warnings.catch_warnings(), without_values():
        warnings.simplefilter("ignore")  # `describe_arms` tells of them
        return sum(parameter.numel() for parameter in Decoder(model).parameters())


def describe_arms(arms: tuple[str, ...], model: BackboneConfig) -> list[str]:
    """A sentence for each arm at the sizes of `model`, and one for each warning about it."""
    told = []
    for arm in arms:
        with warnings.catch_warnings(record=True) as caught, without_values():
            warnings.simplefilter("always")
            decoder = Decoder(with_arm(model, arm))
        told.append(f"{arm}: {decoder.stream.describe()}; {count_parameters(decoder.config):,} parameters.")
        told += [f"  note: {warning.message}" for warning in caught]
    return told


def require_distinct(kind: str, values: tuple[object, ...]) -> None:
    """Refuse a list that is empty or names something twice.

    Raises:
        InputError: it does.
    """
    if not values:
        raise InputError(f"no {kind} named; name at least one")
    for value in values:
        if values.count(value) > 1:
            raise InputError(f"{kind} {value} is named twice; name each once")


def thin_decoder(layers: int, residual: Residual | None = None) -> DecoderConfig:
    """A deep and thin decoder: 3.4 features a layer, pairs of heads about 12 wide that share a key head, MLP of 8/3.

    These are the proportions of `DecoderConfig.from_depth`, thinner by a third, with every width a size needs.
    """
    if layers < 1:
        raise InputError(f"a size is {layers} layers; a decoder needs at least 1")
    features = 3.4 * layers
    pairs = max(1, int(features / 24 + 0.5))
    width = 4 * pairs * max(1, round(features / (4 * pairs)))
    return DecoderConfig(
        vocab_size=BYTE_VOCABULARY,
        layers=layers,
        width=width,
        heads=2 * pairs,
        kv_heads=pairs,
        head_dim=width // (2 * pairs),
        mlp_width=16 * math.ceil(8 * width / (3 * 16)),
        residual=residual or Additive(),
    )


def layers_of(model: BackboneConfig) -> int:
    """Its depth in pairs of a token mixer and a channel mixer."""
    return model.sublayers // SUBLAYERS_PER_LAYER


def arm_name(arm: str, layers: int) -> str:
    """`block`, with or without variants behind it, as the `blockN` that makes about `BLOCKS` blocks of a network."""
    return re.sub(r"^block(?=\+|$)", f"block{block_sublayers(layers)}", arm)


def block_sublayers(layers: int) -> int:
    """Sublayers a block, so that there are at most `BLOCKS`."""
    return math.ceil(2 * layers / BLOCKS)


def with_arm(model: Model, arm: str) -> Model:
    """The same sizes with another residual stream.

    Raises:
        InputError: the arm stands for none, or not for one of this depth or width.
    """
    return dataclasses.replace(model, residual=residual_of(arm_name(arm, layers_of(model))))


def require_arms(arms: tuple[str, ...], model: BackboneConfig) -> None:
    """Build every arm once, without memory, so that what cannot be built is refused before any training.

    Raises:
        InputError: an arm that is unknown, named twice, or that cannot be built at this size.
    """
    require_distinct("arm", arms)
    for arm in arms:
        count_parameters(with_arm(model, arm))


@dataclass(frozen=True)
class Tuning:
    """The runs that find the baseline's learning rate at one size, and the rate once they have."""

    runs: tuple[PlannedRun, ...]
    number: int | None

    @property
    def rate(self) -> float | None:
        """The learning rate found."""
        return None if self.number is None else RATES[self.number]


def tune(
    common: Common,
    prefix: str,
    model: BackboneConfig,
    ended: States,
    start: int = START,
    *,
    steps: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> Tuning:
    """Train the baseline `model` at rates around that of number `start`; runs are named `PREFIX-tune-RATE`.

    `steps`: of each, unless they are those of its own parameters; `labels`: to tell the runs of several tunings apart.
    """
    names = {n: f"{prefix}-tune-{rate:g}" for n, rate in enumerate(RATES)}
    losses = {n: _loss(ended, name) for n, name in names.items() if name in ended}
    found: Walk = walk(losses, start)
    steps = steps or common.steps(model)
    trials = (_trial(common, names[n], model, steps, RATES[n], labels or {}) for n in found.tried)
    return Tuning(tuple(trials), found.chosen)


def _trial(
    common: Common, name: str, model: BackboneConfig, steps: int, rate: float, labels: Mapping[str, str]
) -> PlannedRun:
    config = common.run(name, model, steps=steps, seed=common.tuning_seed, learning_rate=rate)
    known = {"part": "tune", "layers": layers_of(model), "width": model.width, "learning_rate": rate}
    return PlannedRun(name, config, {**known, **labels})


def _loss(ended: States, name: str) -> float:
    final = ended[name].final
    return math.inf if final is None else final["validation_loss"]
