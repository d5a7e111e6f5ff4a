"""Which machine trains: device, precision and the batch it likes. A preset is a row of data with its reason."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """`batch_81` is the batch for puzzles of 81 tokens; longer ones get proportionally less."""

    name: str
    device: str
    autocast: torch.dtype | None
    batch_81: int
    compile: bool
    reason: str
    workers: int = 0
    prefetch: int = 0

    def batch_size(self, seq_len: int) -> int:
        return max(1, self.batch_81 * 81 // max(81, seq_len))


def _gpu(name: str, batch_81: int, reason: str) -> Hardware:
    return Hardware(
        name=name,
        device="cuda",
        autocast=torch.bfloat16,
        batch_81=batch_81,
        compile=True,
        reason=reason,
        workers=1,
        prefetch=2,
    )


PRESETS = {
    preset.name: preset
    for preset in (
        Hardware(
            name="cpu",
            device="cpu",
            autocast=None,
            batch_81=32,
            compile=False,
            reason="small batches learn most per second where the arithmetic itself is the limit",
        ),
        _gpu("rtx4090", 768, "24 GB holds the published global batch of the 27 M model at 81 tokens"),
        _gpu("h200", 3072, "large enough to fill 132 multiprocessors"),
    )
}
"""Figures of the GPU rows are planned from memory size; not run on a GPU."""


def hardware_from_name(name: str) -> Hardware:
    """A preset, or the machine's own for `auto`; refuses unknown names and a GPU that is not there."""
    if name == "auto":
        return PRESETS["rtx4090"] if torch.cuda.is_available() else _this_cpu()
    if name == "cpu":
        return _this_cpu()
    if name not in PRESETS:
        raise ValueError(f"--hw {name!r} is unknown; choose auto, {', '.join(PRESETS)}")
    if not torch.cuda.is_available():
        raise ValueError(
            f"--hw {name} needs a CUDA device and this PyTorch sees none; use --hw cpu or install a CUDA build"
        )
    return PRESETS[name]


def _this_cpu() -> Hardware:
    """bfloat16 pays only where the CPU multiplies it in hardware (AMX); elsewhere it is ten times slower."""
    cpu = PRESETS["cpu"]
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", len(os.sched_getaffinity(0)))))
    if not torch.cpu._is_amx_tile_supported():  # pyright: ignore[reportPrivateUsage]
        return cpu
    return Hardware(
        name="cpu",
        device="cpu",
        autocast=torch.bfloat16,
        batch_81=cpu.batch_81,
        compile=True,
        reason="AMX multiplies bfloat16",
    )
