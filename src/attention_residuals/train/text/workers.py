"""The same function over many items, in several processes, results in order and few items in memory."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from attention_residuals.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

ITEMS_PER_WORKER = 2
"""Items under way for each worker: one at work, one waiting."""

_shared: Any = None
"""In a worker process: what every call of its function gets first."""


def ordered_map(
    function: Callable[[Any, Item], Result], shared: Any, items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, Result]]:
    """Each item with `function(shared, item)`, in the order of the items; `shared` reaches a process once.

    One worker is this process. Processes are started afresh, since PyTorch's threads do not survive a fork; a script
    therefore needs `if __name__ == "__main__":` around what calls this.

    Raises:
        InputError: a process ended before its work was done.
    """
    if workers == 1:
        yield from ((item, function(shared, item)) for item in items)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start, initargs=(shared,)) as pool:
        waiting: deque[tuple[Item, Future[Result]]] = deque()
        try:
            for item in items:
                waiting.append((item, pool.submit(_call, function, item)))
                if len(waiting) >= workers * ITEMS_PER_WORKER:
                    yield _finished(waiting)
            while waiting:
                yield _finished(waiting)
        except BrokenProcessPool as error:
            raise InputError(
                f"one of {workers} worker processes ended early; in a script, call this under "
                "if __name__ == '__main__', or use 1 worker"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _finished(waiting: deque[tuple[Item, Future[Result]]]) -> tuple[Item, Result]:
    item, future = waiting.popleft()
    return item, future.result()


def _start(shared: Any) -> None:
    global _shared
    _shared = shared
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes are the parallelism
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """End this process when its parent is killed, which by itself it would never learn of."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(function: Callable[[Any, Item], Result], item: Item) -> Result:
    return function(_shared, item)
