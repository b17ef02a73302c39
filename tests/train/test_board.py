"""Metrics as TensorBoard event files."""

from pathlib import Path

import pytest

from attention_residuals.train.board import tensorboard

pytest.importorskip("tensorboard")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_numbers_of_a_record_are_written_under_their_names(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tensorboard(tmp_path) as watch:
        watch({"step": 1, "loss": 2.5, "alarms": ["a sentence"]})
        watch({"step": 2, "loss": 2.0, "validation_loss": 2.25})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 2.5), (2, 2.0)]
    assert [(event.step, event.value) for event in events.Scalars("validation_loss")] == [(2, 2.25)]
    assert set(events.Tags()["scalars"]) == {"loss", "validation_loss"}
