"""Commands in this process."""

from typing import Any

from click.testing import Result
from typer.testing import CliRunner


def invoked(app: Any, *arguments: object, given: str = "", **environment: str) -> Result:
    """Run a command over the text `given` as its standard input."""
    line = [str(argument) for argument in arguments]
    return CliRunner(env=environment).invoke(app, line, input=given)


def succeeded(app: Any, *arguments: object) -> Result:
    """Run a command that must succeed."""
    ended = invoked(app, *arguments)
    assert ended.exit_code == 0, ended.output
    return ended


def rejected(app: Any, *arguments: object) -> Result:
    """Run a command that must reject its arguments in one sentence."""
    ended = invoked(app, *arguments)
    assert isinstance(ended.exception, SystemExit), ended.exception
    assert ended.exit_code == 2, ended.output
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended
