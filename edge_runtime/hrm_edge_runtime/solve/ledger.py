"""An output file that can be continued: one line for each puzzle, in their order, each written by one system call.

Whatever stops the writer, the file holds whole lines 1 to n and at most one torn line after them, which is cut off when
the file is opened again. Only a tail that this module can have begun is ever cut off.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path

from hrm_edge_runtime.solve.reading import Entry, SolvingError
from hrm_edge_runtime.solve.tally import Record, Tally

BEGINNING = b'{"number": '
SYNC_EVERY_S = 1.0  # what a power failure may take; a killed process takes nothing that was written


class Ledger:
    """The open file; see `continued`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._synced_s = time.monotonic()

    def skip_answered(self, entries: Iterator[Entry], tally: Tally) -> int:
        """Take the puzzles off `entries` whose answers are here, and count them; refuses answers to other puzzles."""
        num_kept = 0
        with self._path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    self._cut_torn(num_kept, line)
                    break
                tally.add(self._checked(line, number, next(entries, None)))
                num_kept += len(line)
        return tally.num_puzzles

    def write(self, record: Record) -> None:
        """Append a record; refuses where the disk is full."""
        line = json.dumps(record).encode("ascii") + b"\n"
        try:
            if os.write(self._descriptor, line) < len(line):
                raise OSError("the disk is full")
            if time.monotonic() - self._synced_s > SYNC_EVERY_S:
                self.sync()
        except OSError as error:
            raise SolvingError(
                f"{self._path} cannot be written ({error}): make room and run the same command again to continue."
            ) from error

    def sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_s = time.monotonic()

    def _cut_torn(self, num_kept: int, tail: bytes) -> None:
        if not tail.startswith(BEGINNING[: len(tail)]):
            raise self._foreign("its last line")
        os.ftruncate(self._descriptor, num_kept)

    def _checked(self, line: bytes, number: int, entry: Entry | None) -> Record:
        try:
            record = json.loads(line)
            is_own = record["number"] == number and ("answer" in record) != ("error" in record)
            if is_own and entry is not None and record["puzzle"] == entry.puzzle:
                return record
        except (ValueError, KeyError, TypeError):
            pass
        raise self._foreign(f"its line {number}")

    def _foreign(self, what: str) -> SolvingError:
        return SolvingError(
            f"{self._path} cannot be continued, for {what} is no answer to that puzzle of these: "
            "name another file, or give the puzzles it was begun with."
        )


@contextlib.contextmanager
def continued(path: Path) -> Generator[Ledger]:
    """Open or make an output file; refuses one that another run is writing."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise SolvingError(f"{path} cannot be opened ({error}): name a file that can be written.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ledger = Ledger(path, descriptor)
        yield ledger
        ledger.sync()
    except BlockingIOError as error:
        raise SolvingError(f"{path} is being written by another run: wait for it, or name another file.") from error
    finally:
        os.close(descriptor)
