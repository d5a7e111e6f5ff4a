"""Which machine trains: a row of `machines` in recipes.yaml for each."""

import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from hrm_host.board import num_cores
from hrm_model.hrm import HRM
from hrm_train.recipe import TABLES

Precision = Literal["bf16", "fp32"]
Say = Callable[[str], object]  # takes a sentence for the user


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One row of the table; `rows_N` is the micro-batch of the 27 M model at N tokens."""

    name: str
    device: str = "cuda"
    gpu: str = ""
    memory_gb: int = 0
    preset: str = "published"
    precision: Precision = "bf16"
    rows_81: int = 768
    rows_900: int = 1
    small_rows_81: int = 768  # of models below 8 M parameters
    small_rows_900: int = 1
    target_batch: int = 768  # of one update, made up of micro-batches
    workers: int = 1  # threads that draw rows
    prefetch: int = 2  # how many steps ahead they do
    compile: bool = True
    recompute: bool = False  # keeps less for the backward pass and computes it again
    tf32: bool = False  # lets a GPU round the factors of float32 products to 10 bits
    micro_batch: int = 0  # in place of the four figures; 0 leaves it to them
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
        # TensorFloat-32 is off by choice (`tf32`), and the compiler would advise it
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
        model.think, model.halting = torch.compile(model.think), torch.compile(model.halting)


PRESETS = {name: Hardware(name=name, **row) for name, row in TABLES["machines"].items()}


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
