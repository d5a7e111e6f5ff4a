"""A short training of a small model under torchrun."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TRAINING = (
    "--puzzle sudoku-4x4 --hw cpu --preset small --set hidden_size=32 --set puzzle_vector_size=32 "
    "--set max_segments=4 --set batch_size=8 --set total_samples=4800 --checkpoint-steps 20"
)
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
