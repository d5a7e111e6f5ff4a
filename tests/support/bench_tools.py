"""`hrm-bench` in this process."""

import json
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from hrm_benchmarks.cli import app


def bench(arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def figures_of(arguments: str) -> dict[str, Any]:
    ended = bench(f"{arguments} --json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


def refusal_of(arguments: str) -> str:
    ended = bench(arguments)
    assert ended.exit_code == 2, ended.output
    assert "Traceback" not in ended.output
    return ended.stderr
