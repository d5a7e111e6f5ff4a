"""The README's commands are run as written (on a free port), its make targets exist, its links lead somewhere."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from service_tools import free_port

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FOLDERS = (".", "docs", "benchmarks/results")
PAGES = sorted(str(page.relative_to(ROOT)) for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))
LIMIT_S = 1200  # only against what would hang for ever: training and export take 90 s of CPU, and others want the cores
TRAINING = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README + TRAINING, re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(LIMIT_S + 60)  # above the limit that ends what the block has started
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, marks=[pytest.mark.slow] if "--recipe" in block else [])  # a training of ten minutes
        for block in BLOCKS
        if "make " not in block
    ],
)
def test_commands_of_the_readme_run(block: str, tmp_path: Path) -> None:
    script = f"set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{block}"
    script = script.replace("8000", str(free_port()))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (tmp_path / "said").open("w+") as said:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=tmp_path, env=environment, stdout=said, stderr=said, start_new_session=True
        )
        try:
            status = shell.wait(timeout=LIMIT_S)
        finally:
            with suppress(ProcessLookupError):  # whatever the block started ends with it, also where it took too long
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    assert status == 0, (tmp_path / "said").read_text()


def test_there_are_blocks_to_run() -> None:
    assert len([block for block in BLOCKS if "make " not in block]) >= 2


@pytest.mark.parametrize("target", sorted(set(re.findall(r"^make ([a-z-]+)", "\n".join(BLOCKS), re.MULTILINE))))
def test_make_targets_of_the_readme_exist(target: str) -> None:
    ended = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith(("http://", "https://"))]
    missing = [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
    assert missing == []
