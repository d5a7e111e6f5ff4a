"""hrm-doctor: what prevents serving and training on this machine, and how to fix it.

The doctor changes nothing. Other rooms add checks through two entry-point groups:

    hrm_edge.doctor   a function without arguments that returns findings
    hrm_edge.device   a function without arguments that tries the GPU and returns steps for JSON
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

ADD_SWAP = (
    "sudo fallocate -l 16G /swapfile && sudo chmod 600 /swapfile && "
    "sudo mkswap /swapfile && sudo swapon /swapfile"
)


class Finding(NamedTuple):
    """The result of one check; `remedy` is the step that fixes it and empty if all is well."""

    name: str
    text: str
    remedy: str = ""
    level: Literal["ok", "warn", "fail"] = "ok"


ok = Finding
warn = partial(Finding, level="warn")
fail = partial(Finding, level="fail")


def _unless_bad(
    problem: Callable[[str, str, str], Finding], is_bad: bool, name: str, text: str, remedy: str
) -> Finding:
    if is_bad:
        return problem(name, text, remedy)
    return ok(name, text)


warn_if = partial(_unless_bad, warn)
fail_if = partial(_unless_bad, fail)
