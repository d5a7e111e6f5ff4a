"""The examples of docs/python.md print what their comments promise."""

import re
import shutil
from pathlib import Path

import pytest
from service_tools import Server, command

from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.http.auth import Key, hash_of, write_keys

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"print\(.*\)  # (.+)")
KEY = "a-key-for-the-tests-only"


@pytest.mark.process
def test_the_six_examples_print_what_they_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(BLOCKS) == 6
    shutil.copytree(find_bundle("sudoku-6x6"), tmp_path / "my.bundle")
    write_keys(tmp_path / "keys", [Key(label="tests", sha256=hash_of(KEY))])
    monkeypatch.setenv("HRM_API_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    serve = command("serve", "sudoku", "--threads=1", "--keys", tmp_path / "keys")
    names: dict[str, object] = {}
    with Server(serve, headers={"x-api-key": KEY}) as server:
        server.wait_until_ready()
        for block in BLOCKS:
            program = block.replace("http://127.0.0.1:8000", server.url)
            exec(compile(program, "docs/python.md", "exec"), names)
            assert capsys.readouterr().out.splitlines() == PROMISE.findall(block)
