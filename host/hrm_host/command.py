"""What commands share: UTF-8 in pipes, `--version`, options declared once, and five exit statuses.

0: done. 1: a puzzle is not solved, or a gate is broken. 2: wrong use. 3: cannot start or continue.
130: Ctrl-C. Every error is one sentence on standard error, with terminal commands escaped.
"""

import contextlib
import errno
import inspect
import io
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from hrm_host.reading import printable
from hrm_host.system import remedy_at_limit, set_blocking

T = TypeVar("T")
Groups = Mapping[str, str]
Registering = Callable[[Callable[..., Any]], Any]

NAMED_WRONGLY = (
    ValueError,
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
)
REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room there"),
    errno.EROFS: "choose a place that can be written",
    errno.EACCES: "choose a place that you may use",
    **dict.fromkeys(
        (
            errno.ENOENT,
            errno.EEXIST,
            errno.ENOTDIR,
            errno.ENOTEMPTY,
            errno.EISDIR,
            errno.ENAMETOOLONG,
            errno.ELOOP,
        ),
        "choose another path",
    ),
}
WORD_OF_TYPE = {  # what a person reads in the help instead of a type's name
    "<int range>": "N",
    "<float range>": "N",
    "<int>": "N",
    "<float>": "N",
    "<str>": "TEXT",
    "<path>": "PATH",
    "<list[int]>": "N",
    "<int,int>...": "N N",
    "<list[str]>": "TEXT",
    "<list[Path]>": "PATH",
}
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="CPU threads. Default: all cores.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="QUESTION,ANSWER",
        help="Columns of a CSV file by name or number, such as puzzle,solution or 2,3, and a third "
        "for the rating. Default: found by their names or their content.",
    ),
]
UNSOLVED = 1
WRONG_USE = 2
CANNOT_BEGIN = 3
INTERRUPTED = 130


def prepare_streams() -> None:
    """Open the null device for each standard stream that the caller closed; make all of them wait.

    For a closed stream `sys.stderr` is None, and `print(file=None)` writes to standard output,
    among the answers. The next opened file would take the number of standard error, and a library's
    warnings would go into that file. Another program may have made a stream nonblocking: Python
    then loses what does not fit into a pipe, and takes a pause of the input for its end.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # gets the lowest free number, which is the closed stream's
            nothing = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nothing, True)
            setattr(sys, name, os.fdopen(nothing, mode, encoding="utf-8"))
    for number in range(3):
        set_blocking(number, True)


def runnable(name: str, *arguments: object) -> str:
    """How this shell calls one of our commands, with its arguments."""
    return shlex.join([_reachable(name), *map(str, arguments)])


def _reachable(name: str) -> str:
    """The name of a command, or its path if PATH leads elsewhere."""
    beside = Path(sys.executable).parent / name
    found = shutil.which(name)
    if not beside.exists() or (found is not None and Path(found) == beside):
        return name
    try:
        path = os.path.relpath(beside)
    except FileNotFoundError:  # the current folder was removed
        return str(beside)
    if path.startswith(os.pardir):
        path = str(beside)
    return path


class _Grouped:
    """Shows options under headings in the help of a command; others come first.

    Each example has its own line, so that no puzzle is broken.
    """

    epilog: str | None

    heading_of: Mapping[str, str]
    get_params: Callable[[Any], list[Any]]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            default = f"{parameter.param_type_name.capitalize()}s"
            heading = self.heading_of.get(parameter.name, default)
            usage, text = record
            for type_name, word in WORD_OF_TYPE.items():
                usage = usage.replace(type_name, word)
            sections.setdefault(heading, []).append((usage, text))
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
        if isinstance(self, TyperGroup):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        del ctx
        heading, colon, examples = (self.epilog or "").partition(": ")
        if colon:
            formatter.write(f"\n{heading}:\n")
            for example in examples.split("; "):
                formatter.write(f"  {example}\n")


class _CommandGroup(TyperGroup):
    """A group whose first word is a command, or else its own argument, before or after options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [param for param in self.params if param.param_type_name == "option"]
        if args and args[0] in self.commands:
            self.params = options
        else:
            ctx.allow_interspersed_args = len(options) < len(self.params)
        return super().parse_args(ctx, args)


class Command(typer.Typer):
    """A typer application that writes UTF-8 to pipes and ends with the statuses above.

    A ValueError, or a file that is missing or in the way, is wrong use. Another OSError, a lack of
    memory, an error in `cannot`, or a missing package (of `extra`) or library means that the
    command cannot begin. An error's own `exit_status` wins.
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
        self._name = name
        self._extra = extra
        self._errors = (ValueError, OSError, MemoryError, ImportError, *cannot)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        prepare_streams()
        # Python 3.11: no process of ours imports a types.py or random.py of the working directory.
        os.environ.setdefault("PYTHONSAFEPATH", "1")
        if os.environ.get("COLUMNS") == "0":  # no terminal; tables would have no columns
            del os.environ["COLUMNS"]
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if not isinstance(stream, io.TextIOWrapper):
                continue
            if stream.isatty():
                stream.reconfigure(errors="replace")  # not every terminal knows every character
            else:
                stream.reconfigure(encoding="utf-8", errors=stream.errors)
        if sys.argv[1:] == ["--version"]:
            try:
                print(self._name, metadata.version("hrm-edge"))
            except ModuleNotFoundError as error:  # a checkout without installation
                end(self._name, CANNOT_BEGIN, missing_package(error, self._extra))
            return None
        return super().__call__(*args, **kwargs)

    def command(
        self, *args: Any, groups: Groups | None = None, extra: str = "", **settings: Any
    ) -> Registering:
        """As typer's `command`; `groups` maps headings of the help to names of options."""
        register = super().command(*args, cls=_grouped(TyperCommand, groups), **settings)
        return lambda function: register(self._guarded(function, extra or self._extra))

    def callback(self, *args: Any, groups: Groups | None = None, **settings: Any) -> Registering:
        register = super().callback(*args, cls=_grouped(_CommandGroup, groups), **settings)
        return lambda function: register(self._guarded(function, self._extra))

    def _guarded(self, function: Callable[..., T], extra: str) -> Callable[..., T]:
        @wraps(function)
        def guarded(*args: Any, **given: Any) -> T:
            try:
                result = function(*args, **given)
                sys.stdout.flush()
                return result
            except KeyboardInterrupt:
                end(self._name, INTERRUPTED, "stopped")
            except BrokenPipeError:  # the reader of standard output has closed the pipe
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, sys.stdout.fileno())
                raise typer.Exit(UNSOLVED) from None
            except ModuleNotFoundError as error:
                end(self._name, CANNOT_BEGIN, missing_package(error, extra))
            except Exception as error:
                # native code that Ctrl-C interrupts raises an error of its own in place of it
                if "KeyboardInterrupt" in "".join(traceback.format_exception(error)):
                    end(self._name, INTERRUPTED, "stopped")
                is_own = hasattr(error, "exit_status")
                at_limit = None if is_own else remedy_at_limit(error)
                if not is_own and not isinstance(error, self._errors) and at_limit is None:
                    raise
                default = WRONG_USE if isinstance(error, NAMED_WRONGLY) else CANNOT_BEGIN
                sentence = str(error)
                if isinstance(error, MemoryError):
                    sentence = sentence or "there is too little memory"
                if isinstance(error, OSError) and error.errno in REMEDIES:
                    sentence += f"; {REMEDIES[error.errno]}"
                if at_limit is not None:
                    sentence += f"; {at_limit}"
                end(self._name, getattr(error, "exit_status", default), sentence)

        return guarded


def end(name: str, status: int, sentence: str) -> NoReturn:
    """Ends a command with one sentence on standard error."""
    with contextlib.suppress(OSError):  # standard error may be a full disk
        sys.stderr.write(f"{name}: {printable(sentence)}\n")
    sys.exit(status)


def missing_package(error: ModuleNotFoundError, extra: str) -> str:
    """A sentence with the extra that brings a package; raises the error if it is our own."""
    if error.name is None or error.name.startswith("hrm_"):
        raise error
    return f"{error.name} is not installed: run pip install 'hrm-edge[{extra}]'."


def _grouped(kind: type[Any], groups: Groups | None) -> Any:
    heading_of: dict[str, str] = {}
    for heading, names in (groups or {}).items():
        heading_of |= dict.fromkeys(names.split(), heading)
    return type("Grouped", (_Grouped, kind), {"heading_of": heading_of})


def taking(options: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Make a command from a function that takes one dataclass, whose fields are typer options."""

    def command_of(function: Callable[[T], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**given: Any) -> None:
            function(options(**given))

        command.__dict__["__signature__"] = inspect.signature(options)
        return command

    return command_of
