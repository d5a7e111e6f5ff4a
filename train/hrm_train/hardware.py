"""The machine that trains: a row of `machines` in recipes.yaml."""

import os
import re
import warnings
from dataclasses import dataclass, replace
from typing import Literal

import torch

from hrm_host.machine import num_cores
from hrm_model.config import require_fields
from hrm_model.hrm import HRM
from hrm_train.distributed import say
from hrm_train.recipe import TABLES

Precision = Literal["bf16", "fp32"]
Device = Literal["cuda", "cpu"]

SHORT = 81  # tokens of a Sudoku, for which the table has rows_81
LONG = 900  # tokens of a maze or an ARC grid, for which it has rows_900
GIGABYTE = 1e9
MOST_THREADS = 1024
MOST_ROWS = 1 << 20
# The least and the largest value of each number that `--set` may change.
RANGES = {
    "rows_81": (1, MOST_ROWS),
    "rows_900": (1, MOST_ROWS),
    "small_rows_81": (1, MOST_ROWS),
    "small_rows_900": (1, MOST_ROWS),
    "micro_batch": (0, MOST_ROWS),
    "threads": (0, MOST_THREADS),
    "workers": (0, MOST_THREADS),
    "prefetch": (0, MOST_THREADS),
}


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One row of the table; `rows_N` is the micro-batch of the 27 M model at N tokens."""

    name: str
    device: Device = "cuda"
    gpu: str = ""
    memory_gb: int = 0
    preset: str = "published"
    precision: Precision = "bf16"
    rows_81: int = 768
    rows_900: int = 1
    small_rows_81: int = 768  # rows for models below 8 M parameters
    small_rows_900: int = 1
    target_batch: int = 768  # rows of one update, made up of micro-batches
    threads: int = 0  # CPU threads for arithmetic; 0: `threads_for` chooses
    workers: int = 1  # threads that draw rows
    prefetch: int = 2  # steps that the workers draw ahead
    compile: bool = True
    recompute: bool = False  # stores fewer activations and recomputes them in the backward pass
    tf32: bool = False  # lets a GPU round the factors of float32 products to 10 bits
    micro_batch: int = 0  # replaces the four `rows` figures; 0: they decide
    refusal: str = ""

    def __post_init__(self) -> None:
        require_fields(self, RANGES)

    @property
    def dtype(self) -> torch.dtype:
        if self.precision == "bf16":
            return torch.bfloat16
        return torch.float32

    def rows(self, num_tokens: int, *, small: bool) -> int:
        """The micro-batch; beyond the table's two lengths it shrinks as the tokens grow."""
        if self.micro_batch:
            return self.micro_batch
        short_rows = self.rows_81
        long_rows = self.rows_900
        if small:
            short_rows = self.small_rows_81
            long_rows = self.small_rows_900
        if num_tokens <= SHORT:
            return short_rows
        if num_tokens < LONG:
            return max(1, short_rows * SHORT // num_tokens)
        return max(1, long_rows * LONG // num_tokens)

    def compile_(self, model: HRM) -> None:
        """Compiles the functions of a step, or reports why this machine cannot."""
        if not self.compile:
            return
        problem = compile_problem(self.device)
        if problem:
            say(f"training without torch.compile: {problem}; --set compile=false hides this line")
            return
        # TensorFloat-32 is off by choice (`tf32`), but the compiler would recommend it.
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
        model.think = torch.compile(model.think)
        model.halting = torch.compile(model.halting)


def compile_problem(device: str) -> str | None:
    """What torch.compile needs, and after a colon why a small function does not compile here."""
    try:
        torch.compile(torch.nn.ReLU())(torch.zeros(2, device=device))
    except Exception as error:  # of the compiler that torch.compile calls
        output = str(error).rpartition("Output:\n")[2]
        cause = output.partition("\n")[0]
        return (
            "install a C++ compiler, Python's headers and Triton (sudo apt install build-essential "
            f"python3-dev; on Windows Visual Studio's build tools and triton-windows): {cause}"
        )
    return None


PRESETS = {name: Hardware(name=name, **row) for name, row in TABLES["machines"].items()}


def hardware_from_name(name: str, *, is_here: bool = True) -> Hardware:
    """Returns the preset with this name, or the one for a card or a memory size such as 16gb.

    `auto` is this machine's own.

    Raises ValueError for unknown names and machines that cannot train. A plan may be for another
    machine (`is_here` false); otherwise a missing GPU raises too.
    """
    if name == "auto":
        name = "cpu"
        if torch.cuda.is_available():
            found = torch.cuda.get_device_properties(torch.cuda.current_device())
            name = preset_for_gpu(found.name, found.total_memory / GIGABYTE)
    hardware = PRESETS.get(name) or _of_memory_class(name)
    if hardware.refusal:
        raise ValueError(f"--hw {name}: {hardware.refusal}")
    if is_here:
        prepare(hardware)
    # bfloat16 pays only if the CPU multiplies it in hardware (AMX); others are ten times slower.
    if name == "cpu" and torch.cpu._is_amx_tile_supported():  # pyright: ignore[reportPrivateUsage]
        return replace(hardware, precision="bf16", compile=True)  # unless the run is short
    return hardware


def _of_memory_class(name: str) -> Hardware:
    """The preset for a card that has none of its own, or for a size such as 16gb."""
    size = re.fullmatch(r"(\d{1,4})gb", name)
    memory_gb = int(size[1]) if size else TABLES["cards"].get(name)
    if memory_gb is None:
        cards = ", ".join([*PRESETS, *TABLES["cards"]])
        raise ValueError(f"--hw {name!r} is unknown; choose auto, a size such as 16gb, {cards}")
    row = preset_for_gpu(name, memory_gb)
    return replace(PRESETS[row], name=f"{name} (settings of {row})", memory_gb=memory_gb)


def prepare(hardware: Hardware) -> None:
    """Sets the threads of a CPU or the precision of a GPU; raises ValueError if the GPU is missing.

    Every resume needs it, because the number of threads determines rounding.
    """
    if hardware.device == "cpu":
        torch.set_num_threads(hardware.threads or usable_cores())
    if hardware.device != "cuda":
        return
    if not torch.cuda.is_available():
        raise ValueError(
            f"--hw {hardware.name} needs a CUDA device but this PyTorch sees none; "
            "use --hw cpu, install a CUDA build, or see the plan of a run with --dry-run"
        )
    if hardware.tf32:
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_float32_matmul_precision("highest")


def threads_for(num_parameters: int, num_cores: int) -> int:
    """CPU threads for training: one for a model below a million parameters, else one per core.

    Small products gain little from a second thread and slow down if other programs run: on a busy
    machine of two cores, the 4x4 example took 29 s with one thread and 162 s with two.
    """
    if num_parameters < 1_000_000:
        return 1
    return num_cores


def usable_cores() -> int:
    """The cores of this process, or OMP_NUM_THREADS if that is a number, as torchrun sets it."""
    threads, _, _ = os.environ.get("OMP_NUM_THREADS", "").partition(",")  # one for each level
    if threads.isdecimal():
        return int(threads) or 1
    return num_cores()


def preset_for_gpu(gpu: str, memory_gb: float) -> str:
    """The row with the longest name that is part of the GPU's, else the largest row that fits."""
    gpus = [preset for preset in PRESETS.values() if preset.gpu]
    named = [preset for preset in gpus if preset.gpu in gpu]
    if named:
        return max(named, key=lambda preset: len(preset.gpu)).name
    room = 1.05 * memory_gb + 0.5
    fitting = [preset for preset in gpus if not preset.refusal and preset.memory_gb <= room]
    if not fitting:
        raise ValueError(
            f"{gpu} has {memory_gb:.0f} GB, less than any preset; "
            "use --hw rtx3070ti --set rows_81=64 --set rows_900=4"
        )
    return max(fitting, key=lambda preset: preset.memory_gb).name
