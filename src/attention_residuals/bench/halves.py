"""Each setting of the allocator in a fresh process: it cannot be taken back, and memory has no past there."""

import multiprocessing
from multiprocessing.connection import Connection

import torch
from rich.console import Console

from attention_residuals.allocator import keep_freed_memory
from attention_residuals.bench.catalogue import find_benchmark
from attention_residuals.bench.machine import describe_machine
from attention_residuals.bench.progress import Work
from attention_residuals.bench.request import Request
from attention_residuals.bench.results import Half
from attention_residuals.errors import InputError


def run_apart(request: Request, allocator: str) -> Half:
    """Run the benchmark under one setting of the allocator.

    Raises:
        InputError: the setting cannot be made here, or the benchmark refuses something.
        RuntimeError: the process died.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(request, allocator, sender))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the benchmark's process ended with status {process.exitcode}") from None
    finally:
        receiver.close()
    process.join()
    if isinstance(answer, str):
        raise InputError(answer)
    return answer


def run_here(request: Request, allocator: str) -> Half:
    """As `run_apart`, in this process, whose allocator and threads it sets."""
    if allocator == "kept" and not keep_freed_memory():
        raise InputError("this C library cannot keep freed memory; use --allocator shipped")
    torch.set_num_threads(request.threads)
    machine = describe_machine()
    with Work(Console(stderr=True)).shown() as work:
        tables = find_benchmark(request.benchmark).run(request, work)
    return Half(allocator, machine, tables)


def _answer(request: Request, allocator: str, sender: "Connection") -> None:
    try:
        sender.send(run_here(request, allocator))
    except InputError as error:
        sender.send(str(error))
    except KeyboardInterrupt:
        pass  # the parent got it too, and says so
    finally:
        sender.close()
