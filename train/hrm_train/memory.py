"""An estimate of the device memory that a run needs, and the peak that it really takes.

Activations are probed: one and two rows of a short sequence run on the CPU, and what autograd keeps is scaled up.
"""

import sys
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import torch

from hrm_host import memory
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_train.recipe import Recipe
from hrm_train.window import Slots, window_loss

FILLED = 0.9  # share of a device that a micro-batch may fill; the rest is for fragments and other programs
PROBE_LEN = 16
_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def is_out_of_memory(error: RuntimeError) -> bool:
    """A device's own error, or the CPU allocator's, which has no type of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes on one device."""

    weights: int
    gradients: int
    optimiser: int  # its moments
    average: int  # of the weights
    slots: int
    activations: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    @property
    def checkpoint(self) -> int:
        """On disk: all of that but gradients and activations, and one of the two states of the slots."""
        return self.weights + self.optimiser + self.average + self.slots // 2

    def summary(self) -> str:
        parts = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in asdict(self).items())
        return f"memory: about {self.total / 2**20:.0f} MiB ({parts})"


def estimate(
    config: HRMConfig,
    recipe: Recipe,
    *,
    dtype: torch.dtype,
    slots: int,
    micro_batch: int,
    recompute: bool = False,
    world: int = 1,
) -> Estimate:
    """For one of `world` ranks with `slots` slots, learnt from `micro_batch` at a time; without compiler's savings."""
    with torch.device("meta"):
        model = HRM(config)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    slot_bytes = 2 * config.num_positions * config.hidden_size * dtype.itemsize + 8 * config.seq_len
    length = min(config.seq_len, PROBE_LEN) if config.blocks == "attention" else config.seq_len
    short = replace(config, seq_len=length, num_puzzle_ids=1)
    probed = Recipe(window=recipe.window, loss=recipe.loss, label_smoothing=recipe.label_smoothing)
    one, two = (_kept_bytes(short, probed, dtype, count) for count in (1, 2))
    positions, width = micro_batch * config.num_positions, config.hidden_size * dtype.itemsize
    kept = (two - one) * positions // short.num_positions
    constant = max(0, 2 * one - two)  # copies of the weights in another type
    num_high = -(-config.num_learnt_steps // config.low_cycles)
    num_blocks = (config.low_layers * config.num_learnt_steps + config.high_layers * num_high) * recipe.window
    if recompute:
        kept, constant = kept // num_blocks + positions * width * num_blocks, constant // num_blocks
    working = 2 * config.intermediate_size * positions * dtype.itemsize  # the widest product, before anything is kept
    return Estimate(
        weights=weights + model.puzzle_table.numel() * 4,
        gradients=weights * (2 if world > 1 else 1),  # the sum over ranks is taken of a flat copy
        optimiser=2 * weights,
        average=weights,
        slots=2 * slots * slot_bytes,  # of this step, and before it, should it have to be repeated
        activations=kept + constant + working,
    )


@cache
def _kept_bytes(config: HRMConfig, recipe: Recipe, dtype: torch.dtype, rows: int) -> int:
    """What autograd keeps of one window, beside what exists anyway; distinct storages only."""
    with torch.device("meta"):
        low_cycles = min(config.low_cycles, config.num_learnt_steps)  # the other cycles keep nothing
        model = HRM(replace(config, high_cycles=config.num_learnt_steps // low_cycles, low_cycles=low_cycles))
    model = model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    slots = Slots.empty(model, rows, torch.device("cpu"), dtype)
    puzzle_vector_BE = model.puzzle_table[slots.puzzle_ids_B].requires_grad_()
    existing = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers(), *slots.state().values())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(_storage(tensor), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        window_loss(model, slots, puzzle_vector_BE, recipe, model.config.max_segments)
    return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in existing)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def limit_bytes(device: torch.device) -> int:
    """All memory of a GPU; of a CPU what the machine has, or its control group may use where that is less."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return memory.physical_bytes()


def restart_peak(device: torch.device) -> None:
    """`peak_bytes` counts from here on."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif _CLEAR.exists():
        memory.give_back_freed_memory()
        _CLEAR.write_text("5")  # resets the high-water mark of the resident set, proc(5)


def peak_bytes(device: torch.device) -> int:
    """The most that PyTorch has reserved of a GPU, or that this process has held of a CPU's memory, so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if _STATUS.exists():
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    import resource  # not on Windows, where `limit_bytes` has refused already

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
