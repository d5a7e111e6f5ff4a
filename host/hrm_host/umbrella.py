"""`hrm`: every command of this package under one name; `hrm solve` is `hrm-solve`."""

import difflib
import sys
from importlib import metadata

PACKAGE = "hrm-edge"
SAID = {
    "demo": "serve the shipped models, solve a puzzle of a kind and show its board",
    "models": "list the shipped models: kind, size, accuracy and a question to send",
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
        print('\nExamples: hrm demo maze; hrm solve "1...4..3.1..3.2." --bundle small.bundle; hrm serve --port 8000')
    elif name in commands:
        sys.argv = [f"hrm {name}", *arguments]
        sys.exit(commands[name].load()())
    else:
        meant = difflib.get_close_matches(name, commands, 1)
        remedy = f"did you mean {meant[0]}? " if meant else ""
        sys.exit(_refused(f"hrm: there is no command {name[:40]!r}; {remedy}hrm --help lists all."))


def _refused(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2
