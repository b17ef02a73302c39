"""What a layout of processes refuses, before any of them waits for another."""

import pytest

from attention_residuals import InputError
from attention_residuals.distributed.layout import Parallel, PipelineConfig, Schedule
from attention_residuals.models import DecoderConfig, Experts, Gated, GroupedQuery, HybridConfig

MODEL = DecoderConfig(11, 4, 16, 4, 2, 4, 24)
INTERLEAVED = PipelineConfig(4, Schedule.INTERLEAVED_1F1B)


@pytest.mark.parametrize(
    ("parallel", "processes", "message"),
    [
        (Parallel(stages=2), 4, "asks for 2 processes .* and 4 were started"),
        (Parallel(tensor=4), 4, "kv_heads is 2, which 4 \\(tensor\\) does not divide"),
        (Parallel(tensor=3), 3, "sequence_tokens is 32"),
        (Parallel(shards=3), 3, "batch_sequences is 8, which 3"),
        (Parallel(stages=2, replicas=2, pipeline=PipelineConfig(3)), 4, "batch_sequences is 8, which 6"),
        (Parallel(stages=16), 16, "at most 8 are possible"),
        (Parallel(stages=2), 2, "micro_batches is 1 and 1f1b takes at least one for each of 2 stages"),
        (
            Parallel(stages=2, pipeline=PipelineConfig(5, Schedule.INTERLEAVED_1F1B)),
            2,
            "in 2 equal rounds of about 2; choose a multiple of 2",
        ),
        (Parallel(stages=2, cuts=(0, 3, 5)), 2, "cuts has 3 chunks"),
        (Parallel(stages=2, cuts=(0, 9)), 2, "the last is below 8"),
    ],
)
def test_a_layout_that_does_not_fit(parallel: Parallel, processes: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parallel.require_fit(MODEL, batch_sequences=8, sequence_tokens=32, processes=processes)


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (Parallel(replicas=4, experts=3), "experts is 3, which does not fit 4 replicas x 1 shards; choose 1 or 2 or 4"),
        (Parallel(shards=2, experts=4), "does not fit 1 replicas x 2 shards; choose 1 or 2, or other"),
        (Parallel(replicas=3, shards=2, experts=3), "choose 1 or 2 or 6"),
        (Parallel(shards=3, experts=3), "experts is 3, which does not divide the 8 experts of a layer"),
        (Parallel(tensor=2, shards=2, experts=2), "2 tensor, and experts are spread over replicas and shards alone"),
        (Parallel(stages=2, shards=2, experts=2, pipeline=PipelineConfig(2)), "experts is 2 with 2 stages"),
    ],
)
def test_experts_that_cannot_be_spread(parallel: Parallel, message: str) -> None:
    model = HybridConfig(11, 8, (GroupedQuery(2, 2, 4),) * 2, (Gated(8), Experts(8, 8, 2)))
    with pytest.raises(InputError, match=message):
        parallel.require_fit(model, batch_sequences=24, sequence_tokens=32, processes=parallel.processes)


def test_a_model_without_experts() -> None:
    with pytest.raises(InputError, match="experts is 2, and the model has no experts to spread; set experts=1"):
        Parallel(shards=2, experts=2).require_fit(MODEL, batch_sequences=8, sequence_tokens=32, processes=2)


def test_a_layout_that_fits() -> None:
    parallel = Parallel(stages=2, chunks_per_stage=2, pipeline=INTERLEAVED, tensor=2, shards=2)
    parallel.require_fit(MODEL, batch_sequences=8, sequence_tokens=32, processes=8)
    assert parallel.processes == 8 and parallel.data_ranks == 2
    assert parallel.cut(MODEL.sublayers).starts == (0, 2, 4, 6)


def test_layouts_that_are_none() -> None:
    with pytest.raises(InputError, match="replicas"):
        Parallel(replicas=0)
    with pytest.raises(InputError, match="choose interleaved-1f1b"):
        Parallel(stages=2, chunks_per_stage=2)
