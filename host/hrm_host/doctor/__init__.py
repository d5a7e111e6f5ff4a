"""hrm-doctor: what hinders serving and training on this machine, and the step that mends it; nothing is changed.

Other rooms add what they need looked at through the entry-point group `hrm_edge.doctor`: a function without arguments
that returns findings.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

ADD_SWAP = (
    "sudo fallocate -l 16G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile && sudo swapon /swapfile"
)


@dataclass(frozen=True)
class Finding:
    """One thing that was checked; `remedy` is the command or the step that mends it, empty where all is well."""

    name: str
    text: str
    remedy: str = ""
    level: Literal["ok", "warn", "fail"] = "ok"


ok, warn, fail = Finding, partial(Finding, level="warn"), partial(Finding, level="fail")


def warn_if(is_bad: bool, name: str, text: str, remedy: str) -> Finding:
    return warn(name, text, remedy) if is_bad else ok(name, text)


def fail_if(is_bad: bool, name: str, text: str, remedy: str) -> Finding:
    return fail(name, text, remedy) if is_bad else ok(name, text)


def python_finding(version: tuple[int, ...]) -> Finding:
    """The oldest Python that the project supports is 3.10."""
    return fail_if(version < (3, 10), "Python", ".".join(map(str, version)), "install Python 3.10 or newer")
