"""What commands share: UTF-8 in pipes, options that are stated once, and refusals in one sentence."""

import inspect
import io
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import typer

T = TypeVar("T")


class Command(typer.Typer):
    """An application that speaks UTF-8 in a pipe too, where Windows has a code page that boards do not fit in."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
                stream.reconfigure(encoding="utf-8", errors=stream.errors)
        return super().__call__(*args, **kwargs)


def taking(options: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Makes a command of a function of one dataclass, whose fields are annotated as typer wants its options."""

    def command_of(function: Callable[[T], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**given: Any) -> None:
            function(options(**given))

        command.__dict__["__signature__"] = inspect.signature(options)
        return command

    return command_of


@contextmanager
def refusing(command: str, *others: type[Exception]) -> Generator[None]:
    """A user's mistake (ValueError, OSError, `others`) ends in one sentence on standard error and exit code 1."""
    try:
        yield
    except (ValueError, OSError, *others) as error:
        sys.stderr.write(f"{command}: {error}\n")
        raise typer.Exit(1) from error
