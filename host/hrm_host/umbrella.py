"""`hrm`: every command of this package under one name; `hrm solve` is `hrm-solve`."""

import difflib
import importlib
import sys
from importlib import metadata
from pathlib import Path

PACKAGE = "hrm-edge"
SAID = {
    "solve": "solve puzzles, through a server or a bundle opened here",
    "serve": "serve bundles over HTTP, with a page at /",
    "key": "make, list and remove the keys of a server",
    "data": "build, import, inspect and show data sets",
    "train": "train a model: a data set becomes a checkpoint",
    "import": "read a published checkpoint",
    "export": "turn a checkpoint into a bundle",
    "eval": "measure accuracy, effort and calibration of a model on held-out puzzles",
    "calibrate": "choose the INT8 scales of a bundle",
    "parity": "compare an engine with PyTorch, segment by segment",
    "bench": "measure serving and training",
    "doctor": "say what this machine lacks",
}
DESKTOP = {
    "hrm-train": ("hrm_train.cli", "train"),
    "hrm-import": ("hrm_model.published", "train"),
    "hrm-export": ("hrm_export.cli", "export"),
    "hrm-eval": ("hrm_export.evaluation", "export"),
    "hrm-calibrate": ("hrm_calibration.cli", "export"),
}
"""Commands that need more than a server does: their modules, and the extra that brings it."""
ASKS_FOR_HELP = ("--help", "-h", "help")


def main() -> None:
    """Run the command that is named first."""
    scripts = metadata.distribution(PACKAGE).entry_points.select(group="console_scripts")
    commands = {entry.name.removeprefix("hrm-"): entry for entry in scripts if entry.name.startswith("hrm-")}
    name, *arguments = sys.argv[1:] or ASKS_FOR_HELP
    if name == "--version":
        print("hrm", metadata.version(PACKAGE))
    elif name in ASKS_FOR_HELP:
        print("Usage: hrm COMMAND [OPTIONS] [ARGUMENTS]; hrm COMMAND --help says more.\n")
        known = [command for command in SAID if command in commands]
        for command in [*known, *sorted(commands.keys() - SAID.keys())]:
            print(f"  {command:<11}{SAID.get(command, '')}")
        print('\nExamples: hrm solve "1...4..3.1..3.2." --bundle small.bundle; hrm serve --port 8000')
    elif name in commands:
        sys.argv = [f"hrm {name}", *arguments]
        sys.exit(commands[name].load()())
    else:
        meant = difflib.get_close_matches(name, commands, 1)
        remedy = f"did you mean {meant[0]}? " if meant else ""
        sys.exit(_refused(f"hrm: there is no command {name[:40]!r}; {remedy}hrm --help lists all."))


def desktop() -> None:
    """Run a command of the desktop under its own name, or say what to install where it cannot even be imported."""
    name = Path(sys.argv[0]).stem.replace(" ", "-")
    module, extra = DESKTOP[name]
    try:
        command = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("hrm_"):
            raise
        sentence = f"{name}: {error.name} is not installed: run pip install 'hrm-edge[{extra}]'."
        sys.exit(_refused(sentence, status=3))
    command()


def _refused(sentence: str, status: int = 2) -> int:
    print(sentence, file=sys.stderr)
    return status
