"""What commands share: UTF-8 in pipes, `--version`, options that are stated once, and five ways to end.

0: done. 1: a puzzle is not solved, or a gate is broken. 2: wrong use. 3: cannot begin or go on here. 130: Ctrl-C.
Every refusal is one sentence on standard error; what a terminal would obey in it is escaped.
"""

import contextlib
import errno
import inspect
import io
import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import metadata
from typing import Any, NoReturn, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from hrm_host.text import printable

T = TypeVar("T")
Groups = Mapping[str, str]

NAMED_WRONGLY = (
    ValueError,
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
)
UNSOLVED, WRONG_USE, CANNOT_BEGIN, INTERRUPTED = 1, 2, 3, 130


def open_closed_streams() -> None:
    """Opens on nothing the standard streams that the caller has closed.

    Python leaves them None, so that `print(file=sys.stderr)` prints among the answers; and the next file that is opened
    takes their number, so that a library's warnings are written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(
                os.devnull, os.O_RDWR
            )  # takes the lowest free number, which is the closed one
            os.set_inheritable(nothing, True)
            setattr(sys, name, os.fdopen(nothing, mode, encoding="utf-8"))


class _Grouped:
    """Options under their headings in the help of a command; those without one of their own come first."""

    heading_of: Mapping[str, str]
    get_params: Callable[[Any], list[Any]]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            usual = f"{parameter.param_type_name.capitalize()}s"
            if (record := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(self.heading_of.get(parameter.name, usual), []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
        if isinstance(self, TyperGroup):
            self.format_commands(ctx, formatter)


class Command(typer.Typer):
    """An application that speaks UTF-8 in a pipe too, where Windows has a code page that boards do not fit in.

    A ValueError, or a file that is not there or in the way, is wrong use. Another OSError, what is in `cannot`, and a
    missing package (of the extra named here) keep it from beginning. An error's own `exit_status` wins.
    """

    def __init__(
        self,
        name: str,
        *,
        extra: str = "serve",
        cannot: tuple[type[Exception], ...] = (),
        **settings: Any,
    ) -> None:
        super().__init__(
            name=name, rich_markup_mode=None, pretty_exceptions_enable=False, **settings
        )
        self._name, self._extra, self._errors = name, extra, (ValueError, OSError, *cannot)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        open_closed_streams()
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
                stream.reconfigure(encoding="utf-8", errors=stream.errors)
        if sys.argv[1:] == ["--version"]:
            print(self._name, metadata.version("hrm-edge"))
            return None
        return super().__call__(*args, **kwargs)

    def command(
        self, *args: Any, groups: Groups | None = None, extra: str = "", **settings: Any
    ) -> Any:
        """As typer's; `groups` are further headings of its help, each with the names of its options."""
        register = super().command(*args, cls=_grouped(TyperCommand, groups), **settings)
        return self._registering(register, extra or self._extra)

    def callback(self, *args: Any, groups: Groups | None = None, **settings: Any) -> Any:
        return self._registering(
            super().callback(*args, cls=_grouped(TyperGroup, groups), **settings), self._extra
        )

    def _registering(
        self, register: Callable[[Any], Any], extra: str
    ) -> Callable[[Callable[..., Any]], Any]:
        return lambda function: register(self._guarded(function, extra))

    def _guarded(self, function: Callable[..., T], extra: str) -> Callable[..., T]:
        @wraps(function)
        def guarded(*args: Any, **given: Any) -> T:
            try:
                result = function(*args, **given)
                sys.stdout.flush()
                return result
            except KeyboardInterrupt:
                self._end(INTERRUPTED, "stopped")
            except BrokenPipeError:  # whoever read the answers has seen enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(UNSOLVED) from None
            except ModuleNotFoundError as error:
                if error.name is None or error.name.startswith("hrm_"):
                    raise
                install = f"pip install 'hrm-edge[{extra}]'"
                self._end(CANNOT_BEGIN, f"{error.name} is not installed: run {install}.")
            except Exception as error:
                if not isinstance(error, self._errors) and not hasattr(error, "exit_status"):
                    raise
                advice = (
                    "; make room there"
                    if isinstance(error, OSError) and error.errno == errno.ENOSPC
                    else ""
                )
                usual = WRONG_USE if isinstance(error, NAMED_WRONGLY) else CANNOT_BEGIN
                self._end(getattr(error, "exit_status", usual), f"{error}{advice}")

        return guarded

    def _end(self, status: int, sentence: str) -> NoReturn:
        with contextlib.suppress(
            OSError
        ):  # the status says it too, if standard error is a full disk
            sys.stderr.write(f"{self._name}: {printable(sentence)}\n")
        raise typer.Exit(status)


def _grouped(kind: type[Any], groups: Groups | None) -> Any:
    heading_of = {
        name: heading for heading, names in (groups or {}).items() for name in names.split()
    }
    return type("Grouped", (_Grouped, kind), {"heading_of": heading_of})


def taking(options: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Makes a command of a function of one dataclass, whose fields are annotated as typer wants its options."""

    def command_of(function: Callable[[T], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**given: Any) -> None:
            function(options(**given))

        command.__dict__["__signature__"] = inspect.signature(options)
        return command

    return command_of
