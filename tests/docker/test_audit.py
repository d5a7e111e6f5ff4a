"""The audit of dependencies, with a stand-in for the tool that asks the vulnerability service."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

AUDIT = Path(__file__).parents[2] / ".ci" / "audit"
BAD = "jinja2 2.4.1 PYSEC-2014-8 2.7.2"
SKIPPED = "jinja2 Dependency not found on PyPI and could not be audited: jinja2 (2.4.1)"


@pytest.mark.parametrize(
    ("of_control", "of_ours", "arguments", "status", "said"),
    [
        (f"echo '{BAD}'; exit 1", "exit 0", [], 0, ""),
        (f"echo '{BAD}'; exit 1", "echo 'h11 0.1 CVE-1'; exit 1", [], 1, "h11 0.1 CVE-1"),
        (f"echo '{SKIPPED}'; exit 0", "exit 0", [], 3, "NOT AUDITED"),
        ("exit 1", "exit 0", [], 3, "NOT AUDITED"),
        (f"echo '{SKIPPED}'; exit 0", "exit 0", ["--or-say-so"], 0, "NOT AUDITED"),
        (f"echo '{BAD}'; exit 1", "echo 'h11 0.1 CVE-1'; exit 1", ["--or-say-so"], 1, "h11 0.1 CVE-1"),
    ],
)
def test_audit_that_could_ask_nobody_does_not_pass_for_a_clean_one(
    tmp_path: Path, of_control: str, of_ours: str, arguments: list[str], status: int, said: str
) -> None:
    tool = tmp_path / "pip-audit"
    last = 'for last; do :; done\ncase "$last" in constraints.txt)'
    tool.write_text(f"#!/usr/bin/env bash\n{last} {of_ours};; *) {of_control};; esac\n")
    tool.chmod(0o755)
    environment = {**os.environ, "PIP_AUDIT": str(tool)}
    done = subprocess.run([AUDIT, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert said in done.stdout
