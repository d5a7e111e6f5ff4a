"""A short training of a small model under torchrun, on one machine or on two joined ones.

A second "machine" is a network namespace with an address, at the end of a virtual cable.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

TRAINING = (
    "--puzzle sudoku-4x4 --hw cpu --preset small --set hidden_size=32 --set puzzle_vector_size=32 "
    "--set max_segments=4 --set batch_size=8 --set total_samples=4800 --checkpoint-steps 20"
)
PREFIX = f"hrm{os.getpid() % 10_000}"
ONE_MACHINE = "--nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0"


def torchrun(
    data: Path,
    run: Path,
    machines: str = ONE_MACHINE,
    *,
    inside: Sequence[str] = (),
    **environment: str,
) -> subprocess.Popen[str]:
    """Start one agent with its ranks; `inside` is put before the command."""
    command = [*inside, sys.executable, "-m", "torch.distributed.run"]
    command += ["--max-restarts", "3", *machines.split(), "-m", "--", "hrm_train"]
    command += ["--run", str(run), "--data", str(data), *TRAINING.split()]
    variables = {**os.environ, **environment}
    return subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)


def children_of(process: subprocess.Popen[str]) -> list[int]:
    file = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(child) for child in file.read_text().split()]


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
