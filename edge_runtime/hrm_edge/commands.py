"""`hrm`: every command of this package under one name; `hrm solve` is `hrm-solve`."""

import importlib
import sys
from pathlib import Path
from typing import NamedTuple

from hrm_host.command import (
    CANNOT_BEGIN,
    INTERRUPTED,
    Command,
    end,
    missing_package,
    prepare_streams,
)


class CommandEntry(NamedTuple):
    """One command: its entry point, one line of help, and the extra that brings its packages."""

    target: str
    help: str
    extra: str = "serve"


COMMANDS = {
    "demo": CommandEntry(
        "hrm_edge.shipped:demo",
        "watch the shipped models solve a puzzle of each kind",
    ),
    "models": CommandEntry(
        "hrm_edge.shipped:models", "list the shipped models: boards and accuracy"
    ),
    "solve": CommandEntry(
        "hrm_edge.cli:main",
        "solve puzzles through a server or with a bundle on this machine",
    ),
    "serve": CommandEntry("hrm_edge_server.cli:serve", "serve bundles over HTTP, with a page at /"),
    "site": CommandEntry(
        "hrm_edge_server.site:main", "write a static page that solves in the browser"
    ),
    "key": CommandEntry(
        "hrm_edge_server.key_cli:main", "create, list and remove the keys of a server"
    ),
    "push": CommandEntry("hrm_edge.push_cli:main", "bring a bundle to a running server"),
    "data": CommandEntry("hrm_puzzles.cli:main", "build, import and inspect data sets"),
    "train": CommandEntry(
        "hrm_train.cli:main", "train a model: a data set becomes a checkpoint", "train"
    ),
    "import": CommandEntry("hrm_model.import_cli:main", "convert a published checkpoint", "train"),
    "export": CommandEntry("hrm_export.cli:main", "turn a checkpoint into a bundle", "export"),
    "eval": CommandEntry("hrm_export.eval_cli:main", "measure a model on held-out puzzles"),
    "parity": CommandEntry(
        "hrm_parity.cli:main", "compare an engine with PyTorch, segment by segment"
    ),
    "bench": CommandEntry("hrm_benchmarks.cli:app", "measure serving and training", "serve,bench"),
    "doctor": CommandEntry("hrm_host.doctor.cli:main", "check this machine and name what to fix"),
}


def main() -> None:
    """Run the command that the first argument names; typer lists, completes or rejects others."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in COMMANDS:
        sys.argv = [f"hrm {name}", *arguments]
        run(name)
        return
    if name in ("-h", "help"):
        name = "--help"
    listing = _listing()
    listing([name, *arguments], prog_name="hrm")


def desktop() -> None:
    """Run a command of the desktop under its own name."""
    program = Path(sys.argv[0]).stem
    run(program.removeprefix("hrm-"))


def run(name: str) -> None:
    """Run a command; if a package is missing, name the extra to install."""
    prepare_streams()
    entry = COMMANDS[name]
    if not Path(__file__).exists():
        end("hrm", CANNOT_BEGIN, f"{Path(__file__).parents[1]} is an archive: unpack it")
    try:
        module, _, function = entry.target.partition(":")
        command = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        end(f"hrm-{name}", CANNOT_BEGIN, missing_package(error, entry.extra))
    except KeyboardInterrupt:  # before the command has begun
        sys.exit(INTERRUPTED)
    command()


def _listing() -> Command:
    """List every command with its line of help, without importing any of their modules."""
    about = "Train, export and serve small reasoning models. Run COMMAND --help for its options."
    listing = Command("hrm", help=about)
    examples = "hrm demo maze; hrm serve --port 8000; hrm solve puzzles.txt --bundle sudoku"
    listing.callback(epilog=f"Examples: {examples}")(lambda: None)
    for name, entry in COMMANDS.items():
        listing.command(name, help=entry.help)(lambda: None)
    return listing
