"""A terminal for tests: what a person sees who runs a command."""

import os
import pty
import subprocess
from pathlib import Path

PIECE_BYTES = 65536
PATIENCE_S = 60
TERMINAL = {"TERM": "xterm-256color"}


def shown(arguments: list[str], answers: Path | None = None, *, columns: int = 200) -> str:
    master, slave = pty.openpty()
    out = slave
    if answers is not None:
        out = os.open(answers, os.O_WRONLY | os.O_CREAT)
    environment = {**os.environ, **TERMINAL, "COLUMNS": str(columns)}
    with subprocess.Popen(
        arguments, stdout=out, stderr=slave, stdin=slave, env=environment
    ) as process:
        os.close(slave)
        seen = _read_all(master)
        process.wait(PATIENCE_S)
    return seen.decode()


def _read_all(master: int) -> bytes:
    seen = b""
    try:
        piece = os.read(master, PIECE_BYTES)
        while piece:
            seen += piece
            piece = os.read(master, PIECE_BYTES)
    except OSError:  # Linux reports the end of a terminal like this
        pass
    finally:
        os.close(master)
    return seen
