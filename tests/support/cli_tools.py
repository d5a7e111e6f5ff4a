"""Commands in this process, and programs in others."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

PLACES = (Path(sys.executable).parent, os.environ["PATH"], "/usr/sbin", "/usr/local/sbin")


def invoked(app: Any, *arguments: object, given: str = "", **environment: str) -> Result:
    """Run a command over the text `given` as its standard input."""
    line = [str(argument) for argument in arguments]
    return CliRunner(env=environment).invoke(app, line, input=given)


def succeeded(app: Any, *arguments: object) -> Result:
    """Run a command that must succeed."""
    ended = invoked(app, *arguments)
    assert ended.exit_code == 0, ended.output
    return ended


def json_of(app: Any, *arguments: object) -> Any:
    """Return what a command says in JSON."""
    return json.loads(succeeded(app, *arguments, "--json").stdout)


def rejected(app: Any, *arguments: object, status: int = 2, **environment: str) -> str:
    """Run a command that must end with this status and one sentence, which is returned."""
    ended = invoked(app, *arguments, **environment)
    assert isinstance(ended.exception, SystemExit), ended.exception
    assert ended.exit_code == status, ended.output
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def ran(*command: object, status: int = 0, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program that must end with this status."""
    line = [str(word) for word in command]
    ended = subprocess.run(line, capture_output=True, text=True, **options)
    assert ended.returncode == status, f"{ended.stdout}\n{ended.stderr}"
    return ended


def tool(program: str, package: str = "") -> str:
    """Return the path of a program, or skip the test with what to install."""
    path = shutil.which(program, path=os.pathsep.join(map(str, PLACES)))
    if path is None:
        pytest.skip(f"no {program} on this machine: install {package or program}")
    return path
