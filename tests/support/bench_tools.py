"""`hrm-bench` in this process."""

import json
from typing import Any

from cli_tools import rejected, succeeded

from hrm_benchmarks.cli import app


def figures_of(arguments: str) -> dict[str, Any]:
    return json.loads(succeeded(app, *arguments.split(), "--json").stdout)


def refusal_of(arguments: str) -> str:
    return rejected(app, *arguments.split()).stderr
