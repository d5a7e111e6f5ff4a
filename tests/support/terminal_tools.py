"""A terminal for tests: what a person sees who runs a command on one."""

import os
import pty
import subprocess
from pathlib import Path


def shown(arguments: list[str], answers: Path | None = None) -> str:
    """What a person sees who runs the command on a terminal; its standard output goes to `answers` if that is given."""
    master, slave = pty.openpty()
    out = slave if answers is None else os.open(answers, os.O_WRONLY | os.O_CREAT)
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200"}
    with subprocess.Popen(arguments, stdout=out, stderr=slave, stdin=slave, env=environment) as process:
        os.close(slave)
        seen = b""
        try:
            while piece := os.read(master, 65536):
                seen += piece
        except OSError:  # Linux's word for the end
            pass
        finally:
            os.close(master)
        process.wait(60)
    return seen.decode()
