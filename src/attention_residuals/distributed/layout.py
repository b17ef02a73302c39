"""How many processes share a model, and in which way: a config, which imports nothing that is heavy."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from attention_residuals.distributed.cuts import Cuts, Transport
from attention_residuals.errors import InputError, require_positive
from attention_residuals.models import SUBLAYERS_PER_LAYER, BackboneConfig, DecoderConfig, Experts


class Schedule(Enum):
    """In which order the chunks of micro-batches run."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED_1F1B = "interleaved-1f1b"


@dataclass(frozen=True)
class PipelineConfig:
    """How a pipeline runs.

    Args:
        micro_batches: equal parts of a rank's batch.
        schedule, transport: see there.
    """

    micro_batches: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    transport: Transport = Transport.CACHED

    def __post_init__(self) -> None:
        require_positive(self, "micro_batches")

    def require_fit(self, stages: int) -> None:
        """Refuse micro-batches that the schedule cannot order.

        Raises:
            InputError: 1F1B with fewer than stages; Interleaved 1F1B with rounds of unequal length.
        """
        number, rounds = self.micro_batches, max(1, self.micro_batches // stages)
        if self.schedule is Schedule.ONE_F_ONE_B and number < stages:
            raise InputError(
                f"micro_batches is {number} and 1f1b takes at least one for each of {stages} stages; raise it, "
                "or choose gpipe"
            )
        if self.schedule is Schedule.INTERLEAVED_1F1B and number % rounds:
            raise InputError(
                f"micro_batches is {number} and interleaved-1f1b takes them in {rounds} equal rounds of about "
                f"{stages}; choose a multiple of {stages}"
            )


@dataclass(frozen=True)
class Parallel:
    """The processes of a run: stages x replicas x shards x tensor of them.

    Args:
        stages: ranks of the pipeline, P; 1 for none.
        chunks_per_stage: V, chunks of consecutive sublayers on each of them.
        cuts: the first sublayer of each chunk; empty: as even as can be.
        pipeline: see there.
        replicas: copies of the model that learn from different sequences and average their gradients.
        shards: processes that keep a share of every parameter (FSDP2) and learn from different sequences; with
            `replicas` as well it is HSDP.
        tensor: processes that share the matrices of each sublayer, and the tokens between sublayers.
        experts: over how many of the replicas x shards the experts of each mixture are spread; 1: they are as other
            parameters. It adds no processes.

    Raises:
        InputError: a number below 1, or more than one chunk a stage in a schedule that has one.
    """

    stages: int = 1
    chunks_per_stage: int = 1
    cuts: tuple[int, ...] = ()
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    replicas: int = 1
    shards: int = 1
    tensor: int = 1
    experts: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "stages", "chunks_per_stage", "replicas", "shards", "tensor", "experts")
        if self.chunks_per_stage > 1 and self.pipeline.schedule is not Schedule.INTERLEAVED_1F1B:
            raise InputError(
                f"chunks_per_stage is {self.chunks_per_stage} and the schedule {self.pipeline.schedule.value} has one "
                "chunk a stage; choose interleaved-1f1b"
            )

    @property
    def processes(self) -> int:
        """How many take part."""
        return self.stages * self.replicas * self.shards * self.tensor

    @property
    def data_ranks(self) -> int:
        """Processes, or groups of them, that learn from different sequences."""
        return self.replicas * self.shards

    @property
    def shares_parameters(self) -> bool:
        """Whether data parallel goes through FSDP. Copies of a part of a model do too, as HSDP with one shard."""
        return self.shards > 1 or (self.replicas > 1 and max(self.tensor, self.stages, self.experts) > 1)

    @property
    def expert_shards(self) -> int:
        """Processes that keep shares of the same experts (FSDP2), once experts are spread."""
        return max(1, self.shards // self.experts)

    def cut(self, sublayers: int) -> Cuts:
        """Where a network of that many sublayers is cut."""
        if not self.cuts:
            return Cuts.even(sublayers, self.stages, self.chunks_per_stage)
        if len(self.cuts) != self.stages * self.chunks_per_stage:
            raise InputError(
                f"cuts has {len(self.cuts)} chunks, and {self.stages} stages of {self.chunks_per_stage} chunks take "
                f"{self.stages * self.chunks_per_stage}; name as many, or leave it empty"
            )
        return Cuts(self.cuts, sublayers, self.stages)

    def require_fit(self, model: BackboneConfig, batch_sequences: int, sequence_tokens: int, processes: int) -> None:
        """Refuse what cannot run, on every process alike and before any waits for another.

        Raises:
            InputError: other processes than there are; heads, layers, experts, sequences or tokens that do not divide;
                experts spread together with stages or tensor.
        """
        if self.processes != processes:
            raise InputError(
                f"the run asks for {self.processes} processes ({self.stages} stages x {self.replicas} replicas x "
                f"{self.shards} shards x {self.tensor} tensor), and {processes} were started; start as many, for "
                f"example torchrun --nproc-per-node={self.processes}"
            )
        self.cut(model.sublayers)
        if self.stages > 1:
            self.pipeline.require_fit(self.stages)
        parts = self.data_ranks * (self.pipeline.micro_batches if self.stages > 1 else 1)
        _require_divides(batch_sequences, parts, "batch_sequences", "replicas x shards x micro-batches")
        _require_divides(sequence_tokens, self.tensor, "sequence_tokens", "tensor")
        if self.experts > 1:
            self._require_room_for_experts()
            require_divided_experts(_experts_of(model), self.experts)
        require_shared_matrices(model, self.tensor)

    def _require_room_for_experts(self) -> None:
        if self.stages > 1 or self.tensor > 1:
            raise InputError(
                f"experts is {self.experts} with {self.stages} stages and {self.tensor} tensor, and experts are spread "
                "over replicas and shards alone; set stages=1 and tensor=1, or experts=1"
            )
        fitting = [n for n in range(1, self.data_ranks + 1) if self.shards % n == 0 or self._spans_replicas(n)]
        if self.experts not in fitting:
            raise InputError(
                f"experts is {self.experts}, which does not fit {self.replicas} replicas x {self.shards} shards; "
                f"choose {' or '.join(map(str, fitting))}, or other replicas and shards"
            )

    def _spans_replicas(self, experts: int) -> bool:
        """Whether so many ranks are all the shards of some replicas."""
        return experts % self.shards == 0 and self.data_ranks % experts == 0


def require_divided_experts(numbers: Iterable[int], ranks: int) -> None:
    """Refuse mixtures, of so many experts each, that so many ranks cannot share evenly.

    Raises:
        InputError: it names the number, or says that there are none.
    """
    found = list(numbers)
    if not found:
        raise InputError(f"experts is {ranks}, and the model has no experts to spread; set experts=1")
    for number in found:
        if number % ranks:
            raise InputError(
                f"experts is {ranks}, which does not divide the {number} experts of a layer; choose a divisor"
            )


def _experts_of(model: BackboneConfig) -> Iterator[int]:
    """How many experts each mixture has."""
    for i in range(model.sublayers // SUBLAYERS_PER_LAYER):
        _, channels = model.layer(i)
        if isinstance(channels, Experts):
            yield channels.experts


def require_shared_matrices(model: BackboneConfig, ranks: int) -> None:
    """Refuse a model whose heads or hidden units so many tensor ranks cannot share.

    Raises:
        InputError: it names the number, or the kind of model whose matrices are not shared.
    """
    if ranks == 1:
        return
    if not isinstance(model, DecoderConfig):
        raise InputError(
            f"tensor is {ranks}, and only the matrices of a DecoderConfig can be shared, not those of a "
            f"{type(model).__name__}; set it to 1, and take shards or stages"
        )
    for name in ("heads", "kv_heads", "mlp_width"):
        _require_divides(getattr(model, name), ranks, name, "tensor")


def started_processes() -> int:
    """How many processes `torchrun` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def leads() -> bool:
    """Whether this process is the one that speaks and writes, started by `torchrun` or alone."""
    return os.environ.get("RANK", "0") == "0"


def leads_its_machine() -> bool:
    """Whether this process is the first on its machine, or alone."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def restarted() -> bool:
    """Whether `torchrun` has started this process again, after one of its group was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _require_divides(number: int, parts: int, name: str, of: str) -> None:
    if number % parts:
        raise InputError(f"{name} is {number}, which {parts} ({of}) does not divide; choose a multiple of {parts}")
