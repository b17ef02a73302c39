"""What a layout of processes refuses, before any of them waits for another."""

import pytest

from attention_residuals import InputError
from attention_residuals.distributed.layout import Parallel, PipelineConfig, Schedule
from attention_residuals.models import DecoderConfig

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
