"""Two "machines" on one: network namespaces with an address each, joined by a virtual cable."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Generator
from dataclasses import dataclass

import pytest

PREFIX = f"hrm{os.getpid() % 10_000}"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A network namespace; `link` is its end of the cable."""

    name: str
    link: str
    address: str

    @property
    def inside(self) -> list[str]:
        """What to put before a command that runs on this machine."""
        return ["ip", "netns", "exec", self.name]


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def two_machines() -> Generator[tuple[Machine, Machine]]:
    """Two joined machines; skips the test with the reason if this one allows none."""
    if shutil.which("ip") is None:
        pytest.skip("no ip on this machine: install iproute2")
    first = Machine(name=f"{PREFIX}a", link=f"{PREFIX}va", address="10.213.77.1")
    second = Machine(name=f"{PREFIX}b", link=f"{PREFIX}vb", address="10.213.77.2")
    with contextlib.ExitStack() as stack:
        try:
            for machine in (first, second):
                ip("netns", "add", machine.name)
                stack.callback(ip, "netns", "delete", machine.name)
            cable = ["type", "veth", "peer", "name", second.link, "netns", second.name]
            ip("link", "add", first.link, "netns", first.name, *cable)
            for machine in (first, second):
                inside = ["-netns", machine.name]
                ip(*inside, "address", "add", f"{machine.address}/24", "dev", machine.link)
                ip(*inside, "link", "set", machine.link, "up")
                ip(*inside, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine allows no network namespaces: {error.stderr.strip()}")
        yield first, second
