"""Record what users can see of a checkout as one JSON file, to compare a refactoring with it.

python tools/freeze.py --root . --out before.json
python tools/freeze.py --root . --out after.json --only commands,served
python tools/freeze.py --diff before.json after.json --only commands,served

Sentences are not recorded: help texts, messages and descriptions may be rewritten. Names, types,
defaults, exit codes, statuses, reasons, answers and bytes are.

No module of the checkout is imported here. Paths and times are left out: the same checkout on the
same machine gives the same file. Digests of weights and graphs depend on the processor and on the
versions of torch and ONNX Runtime, so compare files of one machine only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import freeze_cases as cases
import freeze_files as files
import freeze_http as http
from checkout import Checkout, Record, outcome, printed

TOOLS = Path(__file__).resolve().parent


def commands(checkout: Checkout) -> Record:
    """Every command with its arguments and options, and the exit status of three options."""
    line = [sys.executable, str(TOOLS / "command_tree.py")]
    for name, entry in checkout.commands.items():
        line.append(f"{name}={entry}")
    tree = printed(checkout.run_line(line))
    ends: Record = {}
    for name in sorted(checkout.commands):
        ends[name] = ends_of(checkout, name)
    return {"tree": json.loads(tree), "ends": ends}


def ends_of(checkout: Checkout, command: str) -> Record:
    shown = checkout.run(command, "--help")
    version = checkout.run(command, "--version")
    refused = checkout.run(command, "--no-such-option")
    return {
        "--help": outcome(shown),
        "--version": printed(version),
        "--no-such-option": outcome(refused),
    }


def refused_commands(checkout: Checkout) -> Record:
    """How commands end if they are used wrongly or cannot begin."""
    found: Record = {}
    for line in cases.REFUSED_COMMANDS:
        ended = checkout.run(*line.split())
        found[line] = outcome(ended)
    return found


def differences(before: Any, after: Any, path: str) -> Iterator[str]:
    """One entry for each value that is not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        yield from differences_of_objects(before, after, path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{path}/{index}")
    elif before != after or type(before) is not type(after):
        old = json.dumps(before, ensure_ascii=False)
        new = json.dumps(after, ensure_ascii=False)
        yield f"{path}:\n  - {old}\n  + {new}"


def differences_of_objects(
    before: Record,
    after: Record,
    path: str,
) -> Iterator[str]:
    for key in before:
        if key in after:
            yield from differences(before[key], after[key], f"{path}/{key}")
        else:
            yield f"{path}/{key}: gone"
    for key in after:
        if key not in before:
            yield f"{path}/{key}: new"


def compare(paths: Sequence[Path], names: Sequence[str]) -> int:
    """Print the differences; return the exit code."""
    before, after = map(read, paths)
    lines: list[str] = []
    for name in names:
        found = differences(before.get(name), after.get(name), name)
        lines.extend(found)
    print("\n".join(lines) or "no difference")
    return 1 if lines else 0


def read(path: Path) -> Record:
    return json.loads(path.read_text(encoding="utf-8"))


PARTS: dict[str, Callable[[Checkout], Record]] = {
    "commands": commands,
    "refused commands": refused_commands,
    "served": http.served,
    "answers": http.answers,
    "data": files.data,
    "training": files.training,
    "export": files.export,
    "refused exports": files.refused_exports,
    "bundles": files.bundles,
    "parity": files.parity,
}


def record(root: Path, names: Sequence[str]) -> Record:
    found: Record = {}
    with tempfile.TemporaryDirectory() as work:
        checkout = Checkout(root, Path(work))
        for name in names:
            began_s = time.monotonic()
            found[name] = PARTS[name](checkout)
            print(f"{name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    return found


def options() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parts = ", ".join(PARTS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--root", type=Path, help="Checkout to record.")
    parser.add_argument("--out", type=Path, help="JSON file to write.")
    parser.add_argument("--only", default=",".join(PARTS), help=f"Parts to record: {parts}.")
    parser.add_argument("--diff", nargs=2, type=Path, metavar="FILE", help="Files to compare.")
    return parser


def main() -> None:
    parser = options()
    given = parser.parse_args()
    names = given.only.split(",")
    for name in names:
        if name not in PARTS:
            parser.error(f"{name!r} is not a part; choose from {', '.join(PARTS)}")
    if given.diff:
        sys.exit(compare(given.diff, names))
    if not given.root or not given.out:
        parser.error("pass --root and --out, or --diff")
    found = record(given.root, names)
    text = json.dumps(found, indent=1, ensure_ascii=False)
    given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
