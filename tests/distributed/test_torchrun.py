"""`attnres train` on several processes, as a user starts it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attention_residuals.train import load_trained

from .faults import LAYOUT, disturbed, environment, logged, numbers, small_run, torchrun, wait_until

pytestmark = [pytest.mark.dist, pytest.mark.slow]
ALONE = [sys.executable, "-m", "attention_residuals.cli"]


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, env=environment())


def stop_under_way(out: Path, *arguments: str) -> int:
    """Ask a run over two processes to stop once it has taken some steps; the step it was saved after."""
    before = logged(out)
    agent = subprocess.Popen(
        torchrun(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    )
    wait_until(lambda: logged(out) > before + 3 or agent.poll() is not None)
    agent.send_signal(signal.SIGTERM)
    told, _ = agent.communicate()
    assert f"Stopped after step {logged(out)}" in told
    return logged(out)


def test_a_run_that_is_killed_goes_on_by_itself(tmp_path: Path) -> None:
    steps = 120
    whole = start(*torchrun(*small_run(tmp_path / "whole", *LAYOUT, steps=steps)))
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.count("nats a token") == 1, "one process speaks"
    met = disturbed(tmp_path / "killed", tmp_path / "log", faults=1, steps=steps)
    assert len(met) == 1 and met[0]["went_on_after"] > 0
    assert numbers(tmp_path / "killed") == numbers(tmp_path / "whole")
    assert load_trained(tmp_path / "killed").step == steps


def test_a_run_stops_when_asked_and_goes_on_in_another_layout(tmp_path: Path) -> None:
    """From a pipeline to shards to one process: the curve of one process, up to rounding."""
    run, steps = tmp_path / "run", 80
    assert start(*ALONE, *small_run(tmp_path / "whole", steps=steps)).returncode == 0
    first = stop_under_way(run, *small_run(run, *LAYOUT, steps=steps))
    second = stop_under_way(run, "train", "--resume", str(run), "parallel.stages=1", "parallel.shards=2")
    assert first < second < steps
    done = start(*ALONE, "train", "--resume", str(run), "parallel.stages=1")
    assert done.returncode == 0, done.stderr
    for one, other in zip(numbers(run), numbers(tmp_path / "whole"), strict=True):
        assert one.get("step") == other.get("step")
        for name in {"loss", "validation_loss"} & one.keys():
            assert one[name] == pytest.approx(other[name], abs=1e-3)
