"""What every benchmark prints: the machine it ran on, JSON, tables, progress and refusals.

A row of figures is a mapping with the keys of `--json`; a column is a heading and a format of such a row.
"""

import contextlib
import json
import os
import platform
import signal
import sys
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from hrm_host.board import Host
from hrm_host.command import refusing

PAPER_WIDTH = 160  # characters

Row = Mapping[str, Any]
Columns = Sequence[tuple[str, str]]


def environment() -> dict[str, object]:
    """The machine and the libraries, and how busy the machine is with other work."""
    return {
        "machine": platform.machine(),
        "system": platform.platform(),
        "processor": Host().cpu_model or platform.processor(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "onnxruntime": version("onnxruntime"),
        "numpy": version("numpy"),
    }


def print_json(settings: Row, *, machine: Row | None = None, **found: object) -> None:
    """Print everything that a script would read."""
    content = {"environment": {**environment(), **(machine or {})}, "settings": settings, **found}
    print(json.dumps(content, indent=2, default=str))


def print_table(
    title: str, columns: Columns, rows: Iterable[Row], *, caption: str = "", left: Collection[str] = ()
) -> None:
    """Print a line for each row; the columns named in `left` are aligned there."""
    table = Table(title=title or None, caption=caption or None, title_justify="left", caption_justify="left")
    for heading, _ in columns:
        table.add_column(heading, justify="left" if heading in left else "right")
    for row in rows:
        shown = {name: _shown(value) for name, value in row.items()}
        table.add_row(*(form.format(**shown) for _, form in columns))
    paper().print(table)


def paper() -> Console:
    """Standard output; in a pipe it is wide enough that no figure is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=PAPER_WIDTH)


def tell(line: str) -> None:
    """Show progress on standard error."""
    Console(file=sys.stderr).print(line, style="dim", highlight=False)


def new_figure(**options: Any) -> Any:
    """An empty matplotlib figure; raises ValueError where it is missing."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ValueError("a picture needs matplotlib: run pip install matplotlib.") from error
    return Figure(**options)


@contextlib.contextmanager
def refusals_in_one_sentence() -> Generator[None]:
    """Print a refusal and exit with 1; meanwhile SIGTERM raises, so that it does not leave a server behind."""

    def leave(signal_number: int, _: object) -> NoReturn:
        sys.exit(128 + signal_number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with refusing("hrm-bench"):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _shown(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _Missing() if value is None else value


class _Missing:
    """A figure that there is not, in any format."""

    def __format__(self, spec: str) -> str:
        return "-"
