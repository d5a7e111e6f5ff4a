"""The README's commands run as written (on a free port), and links between pages lead to files."""

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
TRAINING = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README + TRAINING, re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)")
LIMIT_S = 1200  # only against blocks that hang: training and export take 90 s of CPU time
HEAD = """
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
"""


def runnable() -> list[object]:
    """Return the blocks without make; a training of ten minutes is marked slow."""
    blocks: list[object] = []
    for block in BLOCKS:
        if "make " in block:
            continue
        marks = [pytest.mark.slow] if "--recipe" in block else []
        blocks.append(pytest.param(block, marks=marks))
    assert len(blocks) >= 2
    return blocks


def ended_with(script: str, folder: Path, output: Path) -> int:
    """Run a script with bash and return its status; end all that it has started."""
    commands = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}
    with output.open("w") as stream:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            return shell.wait(timeout=LIMIT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()


@pytest.mark.timeout(LIMIT_S + 60)  # above the limit that ends the block
@pytest.mark.parametrize("block", runnable())
def test_commands_of_the_readme_run(block: str, tmp_path: Path) -> None:
    script = HEAD + block.replace("8000", str(free_port()))
    output = tmp_path / "output"
    status = ended_with(script, tmp_path, output)
    assert status == 0, output.read_text()


def test_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^make ([a-z-]+)", "\n".join(BLOCKS), re.MULTILINE))
    command = ["make", "--dry-run", *sorted(targets)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("folder", [".", "docs", "benchmarks/results"])
def test_links_between_pages_lead_to_files(folder: str) -> None:
    missing: list[str] = []
    for page in sorted((ROOT / folder).glob("*.md")):
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            is_web = link.startswith(("http://", "https://"))
            if not is_web and not (page.parent / link).exists():
                missing.append(f"{page.name}: {link}")
    assert missing == []
