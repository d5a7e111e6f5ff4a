"""The table of options in docs/api.md is the parser's; run this file to write it again."""

import re
from pathlib import Path

import typer.main

from hrm_edge_server.cli import serve

PAGE = Path(__file__).parents[3] / "docs" / "api.md"
NOT_OURS = ("help", "install_completion", "show_completion")
TABLE = re.compile(r"\| option \| default \| what it does \|\n(?:\|.*\n)+")


def flag_table() -> str:
    lines = ["| option | default | what it does |", "|---|---|---|"]
    for option in typer.main.get_command(serve).params:
        if option.param_type_name == "option" and option.name not in NOT_OURS:
            default = "" if option.default in (None, False) else f"`{option.default}`"
            lines.append(f"| `{option.opts[0]}` | {default} | {option.help} |")
    return "\n".join(lines) + "\n"


def test_the_table_of_options_is_the_parsers():
    shown = TABLE.search(PAGE.read_text(encoding="utf-8"))
    assert shown[0] == flag_table(), f"run python {Path(__file__).name} to write it again"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: flag_table(), text), encoding="utf-8")
