"""Saves checkpoints in child processes and kills them; run in a process of its own, since it forks.

`python -m tests.train.killed_saves FOLDER [shared]` prints what each way of killing met, as JSON. After every kill the
latest checkpoint must load and be whole: each state saved is a single number in every tensor, the step. With `shared`
the children save as one of several processes does, in shards and in the background.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist

from attention_residuals.train.checkpoint_files import damage
from attention_residuals.train.checkpoints import latest_checkpoint, load_checkpoint, prune, save_checkpoint
from attention_residuals.train.shared_checkpoints import begin_save
from tests.train.support import adamw, everything, small_model, train

MODEL = small_model()
OPTIMIZERS = adamw(MODEL)
FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def fill(step: int) -> None:
    with torch.no_grad():
        for tensor in MODEL.state_dict().values():
            tensor.fill_(step)
        for state in OPTIMIZERS["adamw"].state.values():
            for tensor in state.values():
                tensor.fill_(step)


def save(folder: Path, step: int) -> None:
    fill(step)
    save_checkpoint(folder, step=step, model=MODEL, optimizers=OPTIMIZERS, facts={"number": step})
    prune(folder, keep_last=2)


def save_shared(folder: Path, step: int) -> None:
    fill(step)
    if not dist.is_initialized():  # never before a fork, which would leave its threads behind
        meeting = folder.parent / f"rendezvous-{os.getpid()}"
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    begin_save(
        folder,
        step=step,
        parts=[MODEL],
        optimizers=OPTIMIZERS,
        facts={"number": step},
        group=dist.distributed_c10d._get_default_group(),
        after=lambda: prune(folder, keep_last=2),
    ).wait()


SAVE_OF_CHILD = save_shared if sys.argv[2:] == ["shared"] else save


def whole_step(folder: Path) -> int:
    """Step of the latest checkpoint, every number of which must be that step; all others must be whole too."""
    faults = [damage(path) for path in folder.glob("step-*")]
    assert not any(faults), faults
    path = latest_checkpoint(folder)
    assert path is not None
    facts = load_checkpoint(path, model=MODEL, optimizers=OPTIMIZERS)
    assert facts["step"] == facts["number"]
    assert all((tensor == facts["step"]).all() for tensor in everything(MODEL, OPTIMIZERS))
    return facts["step"]


def has_debris(folder: Path) -> bool:
    return any(folder.glob(".tmp-*"))


def at_random_moments(folder: Path, kills: int = 10) -> dict[str, int]:
    """Children that save without end, each killed after up to a tenth of a second from its first save on."""
    cut_short, chance = 0, random.Random(0)
    save(folder, 1)
    for _ in range(kills):
        first = whole_step(folder) + 1
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            for step in count(first):
                SAVE_OF_CHILD(folder, step)
                os.write(writer, step.to_bytes(8, "big"))
        os.close(writer)
        last = int.from_bytes(os.read(reader, 8), "big")
        time.sleep(chance.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while announced := os.read(reader, 8):
            last = int.from_bytes(announced, "big")
        os.close(reader)
        cut_short += has_debris(folder)
        assert whole_step(folder) in (last, last + 1), "more than the newest save is lost"
    save(folder, whole_step(folder) + 1)
    return {"kills": kills, "cut_short": cut_short, "debris": has_debris(folder)}


def at_every_file_operation(folder: Path) -> dict[str, int]:
    """One save and prune, killed at its first file operation, then at its second, and so on until it gets through."""
    ready, work = folder / "ready", folder / "work"
    save(ready, 1)
    save(ready, 2)
    cut_short = 0
    for operation in count():
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(ready, work)
        child = os.fork()
        if child == 0:
            kill_at(operation)
            SAVE_OF_CHILD(work, 3)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return {"kills": operation, "cut_short": cut_short, "debris": has_debris(work)}
        cut_short += has_debris(work)
        assert whole_step(work) in (2, 3)
        save(work, 4)
        assert whole_step(work) == 4 and not has_debris(work)
    raise AssertionError("unreachable")


def kill_at(operation: int) -> None:
    """Kill this process when it is about to touch a file for the `operation`-th time (0-based) from now."""
    seen = count()

    def watch(event: str, _: object) -> None:
        if event in FILE_EVENTS and next(seen) == operation:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


if __name__ == "__main__":
    train(MODEL, OPTIMIZERS, range(1))
    place = Path(sys.argv[1])
    found = {
        "at random moments": at_random_moments(place / "random"),
        "at every file operation": at_every_file_operation(place / "every"),
    }
    print(json.dumps(found))
