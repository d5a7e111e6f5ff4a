"""Which machine trains: one row of figures for each, with their reasons. The rows of GPUs were not run on a GPU.

`hrm_train.memory` says of the published 27 M model in bfloat16: a row of 81 tokens keeps 16 MiB of activations, one of
900 tokens 176 MiB; weights, gradients, moments and average take 0.5 GiB, the states of 768 slots of 900 tokens 2.6 GiB,
the puzzle table of all ARC tasks 1.7 GiB. All rows stay below 85 % of their card.
"""

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch

from hrm_host.board import num_cores
from hrm_model.hrm import HRM

Precision = Literal["bf16", "fp32"]
Say = Callable[[str], object]  # takes a sentence for the user


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One row of the table.

    `rows_81` and `rows_900` are the micro-batch of the 27 M model at that many tokens, `small_rows_*` that of models
    below 8 M parameters; `target_batch` is the batch of one update, made up of micro-batches. `workers` threads draw
    rows `prefetch` steps ahead. `recompute` keeps less for the backward pass and computes it again. `tf32` lets a GPU
    round the factors of float32 products to 10 bits.
    `micro_batch` takes the place of the four figures; 0 leaves it to them.
    """

    name: str
    device: str = "cuda"
    gpu: str = ""
    memory_gb: int = 0
    preset: str = "published"
    precision: Precision = "bf16"
    rows_81: int = 768
    rows_900: int = 1
    small_rows_81: int = 768
    small_rows_900: int = 1
    target_batch: int = 768
    workers: int = 1
    prefetch: int = 2
    compile: bool = True
    recompute: bool = False
    tf32: bool = False
    micro_batch: int = 0
    refusal: str = ""

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision is {self.precision!r}; choose {' or '.join(get_args(Precision))}")

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    def rows(self, num_tokens: int, *, small: bool) -> int:
        """Rows at once; between and beyond the two lengths of the table the number of tokens decides."""
        if self.micro_batch:
            return self.micro_batch
        short, long = (self.small_rows_81, self.small_rows_900) if small else (self.rows_81, self.rows_900)
        if num_tokens <= 81:
            return short
        return max(1, short * 81 // num_tokens if num_tokens < 900 else long * 900 // num_tokens)

    def compile_(self, model: HRM, say: Say) -> None:
        """Compiles the functions of a step; where the machine lacks what that needs, says so and leaves them."""
        if not self.compile:
            return
        lacking = None
        if self.device == "cuda" and not importlib.util.find_spec("triton"):
            lacking = "Triton is not installed (Windows: pip install triton-windows)"
        elif self.device != "cuda" and not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))):
            lacking = "no C++ compiler is found"
        if lacking:
            say(f"training without torch.compile, since {lacking}; --set compile=false says so from the start")
            return
        model.think, model.halting = torch.compile(model.think), torch.compile(model.halting)


def _rows(*rows: int) -> dict[str, Any]:
    """In the order of the fields."""
    return dict(zip(("rows_81", "rows_900", "small_rows_81", "small_rows_900"), rows, strict=True))


PRESETS = {
    preset.name: preset
    for preset in (
        # a batch of 32, since small ones learn most per second where the arithmetic itself is the limit; fp32, since
        # bf16 is ten times slower without AMX; no threads for rows, which take 0.1 % of a step
        Hardware(
            name="cpu",
            device="cpu",
            preset="small",
            precision="fp32",
            **_rows(32, 4, 32, 32),
            target_batch=32,
            workers=0,
            prefetch=0,
            compile=False,
        ),
        # the published batch of 768 rows of 81 tokens takes 13 GiB; 80 rows of 900 tokens, with the table of all ARC
        # tasks, take 19 GiB of 24 GB
        Hardware(name="rtx4090", gpu="RTX 4090", memory_gb=24, rows_900=80, small_rows_900=192),
        # 384 rows of 81 tokens (7 GiB, the published laptop batch) fill 76 multiprocessors at 80 to 150 W; 40 rows of
        # 900 tokens, with the table of all ARC tasks, take 12 GiB of 16 GB
        Hardware(
            name="rtx4090-laptop", gpu="RTX 4090 Laptop", memory_gb=16, rows_81=384, rows_900=40, small_rows_900=128
        ),
        # 112 rows of 900 tokens, with the table of all ARC tasks, take 24 GiB of 32 GB
        Hardware(name="rtx5090", gpu="RTX 5090", memory_gb=32, rows_900=112, small_rows_900=256),
        # 192 slots at a quarter of the rate, since the states of 768 slots of 900 tokens alone would take 2.6 GiB; 192
        # rows of 81 tokens take 4 GiB, 16 of 900 tokens with the table of all ARC tasks 6 GiB of 8 GB, of which
        # Windows keeps one; no torch.compile, since Triton is no part of PyTorch on Windows
        Hardware(
            name="rtx3070ti", gpu="RTX 3070 Ti", memory_gb=8, target_batch=192, compile=False, **_rows(192, 16, 192, 48)
        ),
        Hardware(
            name="jetson-orin",
            gpu="Orin",
            memory_gb=8,
            refusal="a Jetson serves models and does not train them, its memory and power are for inference; train on "
            "a desktop with --hw auto, export there, and run hrm-serve here",
        ),
        # 512 rows of 900 tokens take 93 GiB of 141 GB; two threads draw rows four steps ahead, since a step is short
        Hardware(name="h200", gpu="H200", memory_gb=141, rows_900=512, small_rows_900=768, workers=2, prefetch=4),
    )
}
"""bf16 on all GPUs is the published precision. target_batch 768 is the published batch, by accumulation if need be.
One thread draws rows ahead (a batch of 768 takes about 10 ms); two steps ahead hide its jitter."""


def hardware_from_name(name: str, *, is_here: bool = True) -> Hardware:
    """A preset, or the machine's own for `auto`; refuses unknown names, what cannot train, and a missing GPU.

    A plan alone may be for a machine that is not here.
    """
    if name == "auto":
        name = "cpu"
        if torch.cuda.is_available():
            found = torch.cuda.get_device_properties(torch.cuda.current_device())
            name = preset_for_gpu(found.name, found.total_memory / 1e9)
    if name not in PRESETS:
        raise ValueError(f"--hw {name!r} is unknown; choose auto, {', '.join(PRESETS)}")
    hardware = PRESETS[name]
    if hardware.refusal:
        raise ValueError(f"--hw {name}: {hardware.refusal}")
    if is_here:
        prepare(hardware)
    # bfloat16 pays only where the CPU multiplies it in hardware (AMX); elsewhere it is ten times slower
    if name == "cpu" and torch.cpu._is_amx_tile_supported():  # pyright: ignore[reportPrivateUsage]
        return replace(hardware, precision="bf16", compile=True)
    return hardware


def prepare(hardware: Hardware) -> None:
    """Refuses a missing device; gives a CPU its threads, also at a resume, since their number decides the rounding."""
    if hardware.device == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", num_cores())))
    if hardware.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"--hw {hardware.name} needs a CUDA device and this PyTorch sees none; use --hw cpu or install a CUDA build"
        )
    if hardware.device == "cuda":
        torch.set_float32_matmul_precision("high" if hardware.tf32 else "highest")


def preset_for_gpu(gpu: str, memory_gb: float) -> str:
    """The row of that GPU (the longest name that its own contains), else the largest that its memory holds."""
    gpus = [preset for preset in PRESETS.values() if preset.gpu]
    named = [preset for preset in gpus if preset.gpu in gpu]
    if named:
        return max(named, key=lambda preset: len(preset.gpu)).name
    fitting = [preset for preset in gpus if not preset.refusal and preset.memory_gb <= 1.05 * memory_gb + 0.5]
    if not fitting:
        raise ValueError(
            f"{gpu} has {memory_gb:.0f} GB, less than any preset; use --hw rtx3070ti --set rows_81=64 --set rows_900=4"
        )
    return max(fitting, key=lambda preset: preset.memory_gb).name
