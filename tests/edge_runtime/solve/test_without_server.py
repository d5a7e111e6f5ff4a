"""`hrm-solve` without a server: the shipped models solve here, unless a server is named."""

from pathlib import Path

import pytest
from service_tools import free_port
from typer.testing import CliRunner, Result

from hrm_edge_runtime.solve import client
from hrm_edge_runtime.solve.cli import main

SUDOKU = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
REMARK = "solving here with the shipped models"


def solve(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments), "--threads=1"])


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """The usual address, at which nothing listens."""
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setattr(client, "DEFAULT_URL", url)
    return url


def test_a_puzzle_is_solved_here_if_no_server_answers(nobody: str) -> None:
    done = solve(SUDOKU)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("534678912")
    assert done.stderr == f"no server answers at {nobody}: {REMARK}\n"


@pytest.mark.parametrize("named", ["url", "key"])
def test_a_named_server_is_not_replaced(named: str, nobody: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    option = f"--url={nobody}" if named == "url" else f"--key-file={key}"
    done = solve(SUDOKU, option)
    assert done.exit_code == 3
    assert f"no answer from {nobody}" in done.stderr
    assert REMARK not in done.stderr
