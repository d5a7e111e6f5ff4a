"""`hrm`: every command of this package under one name; `hrm solve` is `hrm-solve`."""

import importlib
import sys
from pathlib import Path

from hrm_host.command import CANNOT_BEGIN, Command, open_closed_streams

COMMANDS = {
    "demo": ("hrm_edge_runtime.solve.shipped:demo", "serve", "watch the shipped models solve a puzzle of each kind"),
    "models": (
        "hrm_edge_runtime.solve.shipped:models",
        "serve",
        "list the shipped models: boards and accuracy",
    ),
    "solve": ("hrm_edge_runtime.solve.cli:main", "serve", "solve puzzles, through a server or a bundle opened here"),
    "serve": ("hrm_edge_runtime.cli:serve", "serve", "serve bundles over HTTP, with a page at /"),
    "key": ("hrm_edge_runtime.key_cli:main", "serve", "make, list and remove the keys of a server"),
    "data": ("hrm_puzzles.cli:main", "serve", "build, import, inspect and show data sets"),
    "train": ("hrm_train.cli:main", "train", "train a model: a data set becomes a checkpoint"),
    "import": ("hrm_model.import_cli:main", "train", "read a published checkpoint"),
    "export": ("hrm_export.cli:main", "export", "turn a checkpoint into a bundle"),
    "eval": ("hrm_export.eval_cli:main", "export", "measure a model on held-out puzzles"),
    "calibrate": ("hrm_calibration.cli:main", "export", "choose the INT8 scales of a bundle"),
    "parity": ("hrm_edge_runtime.parity.cli:main", "serve", "compare an engine with PyTorch, segment by segment"),
    "bench": ("hrm_benchmarks.cli:app", "serve,bench", "measure serving and training"),
    "doctor": ("hrm_host.doctor.cli:main", "serve", "say what this machine lacks"),
}
"""The entry point of each, the extra that brings what it needs, and what it does."""
EXAMPLES = "Examples: hrm demo maze; hrm serve --port 8000; hrm solve puzzles.txt --bundle sudoku"


def main() -> None:
    """Run the command that is named first; the others are named, completed and refused as typer does it."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in COMMANDS:
        sys.argv = [f"hrm {name}", *arguments]
        return run(name)
    listing = Command("hrm", help="Train, export and serve small reasoning models. COMMAND --help says more.")
    listing.callback(epilog=EXAMPLES)(lambda: None)
    for known, (_, _, said) in COMMANDS.items():
        listing.command(known, help=said)(lambda: None)
    return listing(["--help" if name in ("-h", "help") else name, *arguments], prog_name="hrm")


def desktop() -> None:
    """Run a command of the desktop under its own name."""
    run(Path(sys.argv[0]).stem.removeprefix("hrm-"))


def run(name: str) -> None:
    """Run a command, or say what to install where it cannot even be imported."""
    open_closed_streams()
    (module, _, entry), extra = COMMANDS[name][0].partition(":"), COMMANDS[name][1]
    try:
        command = getattr(importlib.import_module(module), entry)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("hrm_"):
            raise
        print(f"hrm-{name}: {error.name} is not installed: run pip install 'hrm-edge[{extra}]'.", file=sys.stderr)
        sys.exit(CANNOT_BEGIN)
    command()
