"""Jobs done by worker processes."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context, parent_process
from typing import TypeVar

from hrm_host.system import MAX_WORKERS

Job = TypeVar("Job")
Output = TypeVar("Output")


def results_of(
    function: Callable[[Job], Output], jobs: Sequence[Job], *, num_workers: int
) -> Iterator[Output]:
    """Yield each result as its job ends.

    A single worker runs in this process, and so do all on a system without semaphores: /dev/shm may
    be missing or read-only.
    """
    if num_workers <= 1 or len(jobs) <= 1:
        yield from map(function, jobs)
        return
    # a thread that outlives the main one could not import this any more
    from concurrent.futures import ProcessPoolExecutor, as_completed

    most = min(num_workers, len(jobs), MAX_WORKERS)
    try:
        pool = ProcessPoolExecutor(
            most, mp_context=get_context("spawn"), initializer=end_with_parent
        )
    except (OSError, ImportError):
        yield from map(function, jobs)
        return
    try:
        for future in as_completed([pool.submit(function, job) for job in jobs]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def end_with_parent() -> None:
    """End this process when its parent dies, even if native code or a driver hangs."""
    parent = parent_process()
    assert parent is not None, "only a spawned process has a parent"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
