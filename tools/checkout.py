"""One checkout of this repository: its commands, and its server, run in a folder of their own.

No module of the checkout is imported. Its entry points and packages come from pyproject.toml, so
modules may move freely.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Record = dict[str, Any]
"""A part of a freeze: plain values by name."""

START_S = 120.0  # the server loads every bundle before it is ready
STOP_S = 60.0
COMMAND_S = 900.0  # the longest command exports a bundle in two precisions
CALL = """
import sys
from importlib import import_module
sys.argv[0] = {command!r}
import_module({module!r}).{function}()
"""
PLAIN = {"COLUMNS": "100", "LINES": "50", "NO_COLOR": "1", "TERM": "dumb"}
OURS = ("HRM_", "PYTHON", "FORCE_")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # sums of floats depend on the number of threads


class Checkout:
    """The commands of the checkout at `root`; they run in `work`."""

    def __init__(self, root: Path, work: Path) -> None:
        self.root = root.resolve()
        self.work = work.resolve()
        text = (self.root / "pyproject.toml").read_text(encoding="utf-8")
        settings = tomllib.loads(text)
        project = settings["project"]
        self.commands: dict[str, str] = project["scripts"]
        plugins = self.work / "plugins"
        write_entry_points(plugins, project.get("entry-points", {}))
        paths = [plugins]
        targets = settings["tool"]["hatch"]["build"]["targets"]
        for package in targets["wheel"]["packages"]:
            room = self.root / package
            paths.append(room.parent)
        self.environment = environment_of(paths)

    def line(self, command: str, *arguments: str) -> list[str]:
        """The command line that calls the entry point of `command`."""
        module, _, function = self.commands[command].partition(":")
        program = CALL.format(command=command, module=module, function=function)
        return [sys.executable, "-c", program, *arguments]

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run_line(self.line(command, *arguments))

    def run_line(self, line: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            line,
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )

    def run_well(self, command: str, *arguments: str) -> str:
        """What the command prints; ends this program unless the command exits with 0."""
        return printed(self.run(command, *arguments))

    @contextlib.contextmanager
    def served(self, bundles: Iterable[str], **variables: str) -> Generator[httpx.Client]:
        """A client of a ready server of these bundles; `variables` are added to its environment."""
        port = free_port()
        options = ["--engine", "cpu:fp32", "--slots", "4", "--threads", "1", "--port", str(port)]
        line = self.line("hrm-serve", *bundles, *options)
        environment = {**self.environment, **variables}
        log = self.work / "server.log"
        with log.open("w") as errors:
            server = subprocess.Popen(line, cwd=self.work, env=environment, stderr=errors)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120.0) as http:
                wait_until_ready(http, server, log)
                yield http
        finally:
            server.terminate()
            server.wait(STOP_S)


def write_entry_points(folder: Path, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write metadata with the checkout's plug-ins; the environment may name another checkout's."""
    lines: list[str] = []
    for group, entries in groups.items():
        lines.append(f"[{group}]")
        for name, value in entries.items():
            lines.append(f"{name} = {value}")
    metadata = folder / "hrm_edge-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hrm-edge\nVersion: 0\n")
    text = "\n".join(lines) + "\n"
    (metadata / "entry_points.txt").write_text(text)


def environment_of(paths: Iterable[Path]) -> dict[str, str]:
    """This environment without our own variables, colors and other Python paths."""
    kept: dict[str, str] = {}
    for name, value in os.environ.items():
        if not name.startswith(OURS):
            kept[name] = value
    kept["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    return {**kept, **PLAIN, **ONE_THREAD}


def printed(ended: subprocess.CompletedProcess[str]) -> str:
    if ended.returncode:
        line = " ".join(ended.args)
        raise SystemExit(f"{line} exits with {ended.returncode}:\n{ended.stderr[-3000:]}")
    return ended.stdout


def outcome(ended: subprocess.CompletedProcess[str]) -> Record:
    """How a command ended, without its sentences."""
    return {
        "exit": ended.returncode,
        "traceback": "Traceback (most recent call last)" in ended.stderr,
        "prints": bool(ended.stdout),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(http: httpx.Client, server: subprocess.Popen[bytes], log: Path) -> None:
    give_up_s = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < give_up_s:
        with contextlib.suppress(httpx.TransportError):
            if http.get("/readyz").status_code == 200:
                return
        time.sleep(0.1)
    raise SystemExit(f"hrm-serve does not become ready:\n{log.read_text()[-3000:]}")
