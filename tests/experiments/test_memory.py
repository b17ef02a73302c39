"""Peak memory, read in a process of its own."""

import pytest

from attention_residuals.experiments.memory import measure_peak_bytes


@pytest.mark.slow
def test_longer_sequences_need_more_memory_and_the_parents_peak_does_not_count() -> None:
    short, long = (
        measure_peak_bytes("full", 4, batch_sequences=2, sequence_tokens=tokens, device="cpu") for tokens in (32, 2048)
    )
    assert short is not None and long is not None
    ballast = bytearray(2**30)  # raises this process's own peak
    again = measure_peak_bytes("full", 4, batch_sequences=2, sequence_tokens=32, device="cpu")
    del ballast
    assert again is not None and again < long < 2**30
    assert long - short > 2 * 2048 * 32 * 4 * 9, "less than its nine sources"
