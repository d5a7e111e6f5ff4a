"""Print the commands of a checkout as JSON: subcommands, arguments, options, defaults, choices.

python tools/command_tree.py hrm-solve=hrm_edge_runtime.solve.cli:main

Each entry point is called as for `--help`, with click's `main` replaced: it hands over the
command and does not run it. So this works for every click or Typer application, wherever and
whenever it builds its commands. Help texts and the layout of the page are left out.
"""

from __future__ import annotations

import json
import sys
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

Record = dict[str, Any]
MODULES = ("click.core", "typer.core", "typer._click.core")  # newer releases of Typer bring a click


class Reached(BaseException):
    """The entry point has reached this command, with these arguments."""

    def __init__(self, command: Any, arguments: list[str]) -> None:
        super().__init__()
        self.command = command
        self.arguments = arguments


def hand_over(command: Any, args: Any = None, *_: Any, **__: Any) -> NoReturn:
    """Stands in for `Command.main`."""
    arguments = sys.argv[1:] if args is None else args
    raise Reached(command, list(arguments))


def replace_main() -> None:
    for name in MODULES:
        try:
            module = import_module(name)
        except ModuleNotFoundError:
            continue
        for value in vars(module).values():
            if isinstance(value, type) and "main" in vars(value):
                value.main = hand_over  # type: ignore[attr-defined]


def reach(program: str, entry: str, names: list[str]) -> tuple[Any, Any]:
    """The command that `program NAMES --help` shows, and its context."""
    module, _, function = entry.partition(":")
    call = getattr(import_module(module), function)
    sys.argv = [program, *names, "--help"]
    try:
        call()
    except Reached as reached:
        return descend(reached.command, program, reached.arguments)
    raise SystemExit(f"{program} {' '.join(names)} does not reach a click command")


def descend(command: Any, program: str, arguments: list[str]) -> tuple[Any, Any]:
    """Follow the names of subcommands up to `--help`."""
    context = command.make_context(program, [], resilient_parsing=True)
    for name in arguments[: arguments.index("--help")]:
        command = command.get_command(context, name)
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    return command, context


def subcommands_of(command: Any, context: Any) -> list[str]:
    if not hasattr(command, "list_commands"):
        return []
    shown: list[str] = []
    for name in command.list_commands(context):
        if not command.get_command(context, name).hidden:
            shown.append(name)
    return sorted(shown)


def tree_of(program: str, entry: str) -> Record:
    """Every command of one entry point under its full name."""
    found: Record = {}
    waiting: list[list[str]] = [[]]
    while waiting:
        names = waiting.pop(0)
        command, context = reach(program, entry, names)
        record = parameters_of(command, context)
        record["subcommands"] = subcommands_of(command, context)
        found[" ".join([program, *names])] = record
        for name in record["subcommands"]:
            waiting.append([*names, name])
    return found


def parameters_of(command: Any, context: Any) -> Record:
    """Arguments in their order, options by name."""
    arguments: list[Any] = []
    options: Record = {}
    for parameter in command.get_params(context):
        record = parameter_record(parameter, context)
        if parameter.param_type_name == "argument":
            arguments.append(record)
        else:
            options[longest(parameter.opts)] = record
    by_name = dict(sorted(options.items()))
    return {"arguments": arguments, "options": by_name}


def longest(names: list[str]) -> str:
    """The longest name; of several, the first in the alphabet."""
    return max(sorted(names), key=len)


def parameter_record(parameter: Any, context: Any) -> Record:
    """What the parameter takes; values that are not set are left out."""
    usage = "hidden"
    page = parameter.get_help_record(context)
    if page is not None:
        usage, _ = page  # the names and the metavar
    default = parameter.get_default(context, call=False)
    record = {
        "usage": usage,
        "names": sorted([*parameter.opts, *parameter.secondary_opts]),
        "required": parameter.required,
        "repeated": parameter.nargs != 1 or getattr(parameter, "multiple", False),
        "default": plain(default),
        **values_of(parameter),
    }
    return {key: value for key, value in record.items() if value is not None}


def values_of(parameter: Any) -> Record:
    """Choices and bounds. Typer and click store them in different attributes."""
    described = getattr(parameter, "type_descriptor", None) or parameter.type
    bounds = parameter if hasattr(parameter, "type_descriptor") else described
    choices = getattr(described, "choices", None)
    least = getattr(bounds, "min", None)
    most = getattr(bounds, "max", None)
    return {"choices": plain(choices), "min": plain(least), "max": plain(most)}


def plain(value: Any) -> Any:
    """The value as JSON, without absolute paths, because these belong to one machine."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if type(value) is object:  # click marks a default that is not set
        return None
    if callable(value):
        return "dynamic"
    text = str(value)
    if Path(text).is_absolute():
        return "PATH"
    return text


def main() -> None:
    replace_main()
    found: Record = {}
    for argument in sys.argv[1:]:
        program, _, entry = argument.partition("=")
        found.update(tree_of(program, entry))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
