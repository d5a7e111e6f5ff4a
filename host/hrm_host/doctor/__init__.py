"""hrm-doctor: what hinders serving and training on this machine, and the step that mends it; nothing is changed.

Other rooms add what they need looked at through the entry-point group `hrm_edge.doctor`: a function without arguments
that returns findings.
"""

from dataclasses import dataclass
from typing import Literal

ADD_SWAP = (
    "sudo fallocate -l 16G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile && sudo swapon /swapfile"
)

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was checked; `remedy` is the command or the step that mends it, empty where all is well."""

    name: str
    level: Level
    text: str
    remedy: str = ""


def ok(name: str, text: str) -> Finding:
    return Finding(name=name, level="ok", text=text)


def warn(name: str, text: str, remedy: str) -> Finding:
    return Finding(name=name, level="warn", text=text, remedy=remedy)


def fail(name: str, text: str, remedy: str) -> Finding:
    return Finding(name=name, level="fail", text=text, remedy=remedy)


def warn_if(is_bad: bool, name: str, text: str, remedy: str) -> Finding:
    return warn(name, text, remedy) if is_bad else ok(name, text)


def fail_if(is_bad: bool, name: str, text: str, remedy: str) -> Finding:
    return fail(name, text, remedy) if is_bad else ok(name, text)


def python_finding(version: tuple[int, ...]) -> Finding:
    """The oldest Python that the project supports is 3.10."""
    return fail_if(version < (3, 10), "Python", ".".join(map(str, version)), "install Python 3.10 or newer")
