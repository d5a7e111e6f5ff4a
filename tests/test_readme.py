"""The commands and examples of the pages run as written, and links between pages lead to files."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from bundle_tools import install
from cli_tools import ran
from files import ROOT, blocks, text_of
from service_tools import PATIENCE_S, USER, command, free_port, hrm_serve, write_key_file

from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_puzzles import registry
from hrm_puzzles.data.sources import questions_made

pytestmark = pytest.mark.process
README = text_of("README.md")
TRAINING = text_of("docs/training.md")
BLOCKS = blocks(README + TRAINING, "sh")
LINK = re.compile(r"\]\(([^)#]+)")
LIMIT_S = 1200  # only against blocks that hang: training and export take 90 s of CPU time
HEAD = """
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
"""


def runnable() -> list[object]:
    """Return the blocks but those of tests; the training of a whole recipe is marked slow."""
    blocks = []
    for block in BLOCKS:
        if "make test " in block:
            continue
        marks = [pytest.mark.slow] if "hrm-train sudoku-small" in block else []
        blocks.append(pytest.param(block, marks=marks))
    assert len(blocks) >= 2
    return blocks


def ended_with(script: str, folder: Path, output: Path) -> int:
    """Run a script in a bare shell and return its status; end all that it has started."""
    paths = os.environ["PATH"].split(os.pathsep)
    bare = [path for path in paths if not (Path(path) / "hrm").exists()]
    environment = {**os.environ, "PATH": os.pathsep.join(bare)}
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


def make_checkout(folder: Path) -> None:
    """Write what a checkout holds after `make demo test`; both environments are this one."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (folder / name).symlink_to(ROOT / name)
    for name in (".venv", ".venv-serve"):
        commands = folder / name / "bin"
        commands.mkdir(parents=True)
        (commands / "activate").write_text(f'PATH="{Path(sys.executable).parent}:$PATH"\n')
        (folder / name / "ready").touch()


@pytest.mark.timeout(LIMIT_S + 60)  # above the limit that ends the block
@pytest.mark.parametrize("block", runnable())
def test_commands_of_the_readme_run(block: str, tmp_path: Path):
    script = HEAD + block.replace("8000", str(free_port()))
    output = tmp_path / "output"
    make_checkout(tmp_path)
    status = ended_with(script, tmp_path, output)
    assert status == 0, output.read_text()


def test_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^make ([a-z-]+)", "\n".join(BLOCKS), re.MULTILINE))
    ran("make", "--dry-run", *sorted(targets), cwd=ROOT)


@pytest.mark.parametrize("folder", [".", "docs", "benchmarks/results"])
def test_links_between_pages_lead_to_files(folder: str):
    missing = []
    for page in sorted((ROOT / folder).glob("*.md")):
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            is_web = link.startswith(("http://", "https://"))
            if not is_web and not (page.parent / link).exists():
                missing.append(f"{page.name}: {link}")
    assert missing == []


GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOR_DOCKER = {file for file in (ROOT / "docker").rglob("*") if file.is_file()}
FOR_DOCKER -= set((ROOT / "docker").rglob("*.md"))
BUNDLE = re.compile(r"(?<![\w.*-])[\w./-]*\w\.bundle\b(?! import)")


def unmade_bundles(text: str) -> list[str]:
    """Bundles of paths that nothing before them in the text makes; capitals are a placeholder."""
    made = set()
    unmade = []
    for line in text.splitlines():
        for bundle in BUNDLE.findall(line):
            name = Path(bundle).stem
            if re.search(rf"--out \S*{re.escape(bundle)}", line):
                made.add(bundle)
            elif bundle not in made and not name.isupper():
                unmade.append(line)
    return unmade


@pytest.mark.parametrize("page", [*GUIDES, *sorted(FOR_DOCKER)], ids=lambda page: page.name)
def test_every_bundle_in_commands_is_made_by_an_earlier_line(page: Path):
    text = page.read_text(encoding="utf-8")
    commands = "".join(blocks(text, "(?:sh)?")) if page in GUIDES else text
    assert unmade_bundles(commands) == []


OWN_PAGE = text_of("docs/own-puzzle.md")
PUZZLE, DATA = blocks(OWN_PAGE, "")
SHORT = {"total_samples=24000": "total_samples=1600", "total_samples=40000": "total_samples=160"}


def run(block: str, folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """Run the commands of ours that end and need no key, and return what each printed."""
    printed = {}
    for line in block.splitlines():
        words = [SHORT.get(word, word) for word in shlex.split(line, comments=True)]
        program = words[0].removeprefix("hrm-")
        if "=" in program or program in ("pip", "serve", "curl"):
            continue
        done = subprocess.run(
            command(program, *words[1:]),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=10 * PATIENCE_S,
        )
        is_unsolved = program == "solve" and done.returncode == 1  # after so short a training
        assert done.returncode == 0 or is_unsolved, f"{line}\n{done.stdout}{done.stderr}"
        printed[program] = printed.get(program, "") + done.stdout
    return printed


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_puzzle_of_ones_own_is_checked_trained_exported_and_served(tmp_path: Path):
    install(tmp_path, "[hrm_edge.puzzles]\nlatin-5x5 = latin:LatinSquare\n")
    own = [str(tmp_path), str(ROOT / "docs" / "own-puzzle"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(own)}
    printed = run(PUZZLE, tmp_path, environment)
    assert "kept" in printed["data"]
    assert "BROKEN" not in printed["data"]
    assert (tmp_path / "latin.bundle" / "manifest.json").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_shipped_model_is_trained_on_and_put_on_a_running_server(tmp_path: Path):
    (tmp_path / "model").symlink_to(ROOT / "model")
    sudoku = registry.get("sudoku")
    rows = [sudoku.asked(sudoku.decode(one.tokens_T)) for one in questions_made(sudoku, 6)]
    (tmp_path / "mine.csv").write_text("\n".join(["puzzle", *rows]))
    printed = run(DATA, tmp_path, dict(os.environ))
    assert "mine" in printed["eval"]
    arguments = shlex.split(re.findall(r"^hrm-serve (.*)#", DATA, re.MULTILINE)[0])
    made = ran(*command("key", "add", "me", "--admin"), cwd=tmp_path)
    key = made.stdout.split()[-1]
    served = [str(tmp_path / word) if word in ("uploads", "keys") else word for word in arguments]
    with hrm_serve(*served, key=key) as server:
        push = command("push", tmp_path / "mine.bundle", server.url)
        ran(*push, env={**os.environ, "HRM_API_KEY": key})
        answer = server.solve(rows[0], model="mine").json()
        assert answer["model"] == "mine"


PYTHON_PAGE = text_of("docs/python.md")
EXAMPLES = blocks(PYTHON_PAGE, "python")
PROMISE = re.compile(r"print\(.*\)  # (.+)")


def test_the_six_examples_print_what_they_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert len(EXAMPLES) == 6
    shutil.copytree(find_bundle("sudoku-6x6"), tmp_path / "my.bundle")
    keys = write_key_file(tmp_path)
    monkeypatch.setenv("HRM_API_KEY", USER)
    monkeypatch.chdir(tmp_path)
    names = {}
    with hrm_serve("sudoku", "--keys", keys, key=USER) as server:
        for block in EXAMPLES:
            program = block.replace("http://127.0.0.1:8000", server.url)
            exec(compile(program, "docs/python.md", "exec"), names)
            assert capsys.readouterr().out.splitlines() == PROMISE.findall(block)
