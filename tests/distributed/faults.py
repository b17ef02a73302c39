"""Runs under `torchrun` whose processes are killed at random moments; a command for people, and a function for tests.

`python -m tests.distributed.faults FOLDER [FAULTS]` trains once undisturbed and once with FAULTS kills (10), and prints
what each kill met, as JSON. The killed run has to go on by itself, lose no step that was saved, and end with the same
numbers.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attention_residuals.train.checkpoints import checkpoints_by_step

STEPS, SAVE_EVERY = 400, 10
LAYOUT = ("parallel.stages=2", "parallel.pipeline.micro_batches=2")
SECONDS_TO_GO_ON = 180.0


def torchrun(*arguments: str, processes: int = 2, restarts: int = 0) -> list[str]:
    """`attnres ARGUMENTS` on processes of this machine."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--monitor-interval=0.1"),
        *(f"--nproc-per-node={processes}", f"--max-restarts={restarts}", "-m", "attention_residuals.cli", *arguments),
    ]


def small_run(out: Path, *layout: str, steps: int = STEPS) -> tuple[str, ...]:
    """The arguments of a run of seconds."""
    lengths = (f"steps={steps}", f"checkpoint_every_steps={SAVE_EVERY}", "evaluate_every_steps=1000")
    sizes = ("final_evaluation_tokens=2048", "evaluation_tokens=1024", "text.sequence_tokens=32")
    return ("train", "tiny", *lengths, *sizes, *layout, "--out", str(out))


def environment() -> dict[str, str]:
    """That of a run that stays on this machine."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}


def numbers(run: Path) -> list[dict[str, Any]]:
    """What a run logged, without its times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def disturbed(out: Path, log: Path, faults: int, steps: int = STEPS, seed: int = 0) -> list[dict[str, Any]]:
    """Run with `faults` kills: at which step, what was saved then, and after which step the run went on.

    The first comes once something is saved, so that there is something to lose.
    """
    chance, met = random.Random(seed), []
    with log.open("w") as file:
        killed = torchrun(*small_run(out, *LAYOUT, steps=steps), restarts=faults)
        agent = subprocess.Popen(killed, stdout=file, stderr=subprocess.STDOUT, env=environment())
        try:
            for _ in range(faults):
                begun = logged(out)
                wait_until(lambda begun=begun: (_saved(out) > 0 and logged(out) > begun) or agent.poll() is not None)
                time.sleep(chance.uniform(0, 1))
                if agent.poll() is not None:
                    break
                saved = _saved(out)
                victim = chance.choice(_children(agent.pid))
                os.kill(victim, signal.SIGKILL)
                met.append({"step": logged(out), "saved": saved})
                wait_until(lambda: len(_resumed(log)) >= len(met) or agent.poll() is not None)
            assert agent.wait(SECONDS_TO_GO_ON) == 0, log.read_text()[-3000:]
        finally:
            agent.terminate()
            agent.wait()
    for fault, step in zip(met, _resumed(log), strict=True):
        fault["went_on_after"] = step
        assert step >= fault["saved"], "a saved step was lost"
    return met


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def logged(out: Path) -> int:
    """Lines of the metrics so far."""
    file = out / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _saved(out: Path) -> int:
    """Steps that are safe on disk."""
    return max(checkpoints_by_step(out / "checkpoints"), default=0)


def _resumed(log: Path) -> list[int]:
    """After which steps the run went on."""
    return [int(step.replace(",", "")) for step in re.findall(r"after step\s+([\d,]+)\s+of", log.read_text())]


def wait_until(until: Callable[[], bool]) -> None:
    """Return as soon as it is so, and fail if it never is."""
    end = time.monotonic() + SECONDS_TO_GO_ON
    while not until():
        assert time.monotonic() < end, "the run does not go on"
        time.sleep(0.02)


def main(folder: Path, faults: int) -> None:
    """Both runs, compared."""
    folder.mkdir(parents=True)
    whole, killed = folder / "whole", folder / "killed"
    subprocess.run(torchrun(*small_run(whole, *LAYOUT)), check=True, stdout=subprocess.DEVNULL, env=environment())
    met = disturbed(killed, folder / "log", faults)
    equal = numbers(killed) == numbers(whole)
    print(json.dumps({"faults": met, "equal": equal}))
    assert equal and len(met) == faults


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10)
