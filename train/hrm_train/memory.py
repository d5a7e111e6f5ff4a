"""An estimate of the device memory that a run needs.

Activations are probed: one and two rows of a short sequence run on the CPU, and what autograd keeps
is scaled up.
"""

from dataclasses import asdict, dataclass, replace
from functools import cache

import torch

from hrm_host import memory
from hrm_host.memory import MIB
from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_model.hrm import HRM
from hrm_train.optim import OPTIMIZERS
from hrm_train.recipe import Recipe
from hrm_train.window import Slots, window_loss

# Share of a device that a micro-batch may fill. The rest is for fragments and other programs.
FILLED = 0.9


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out on a device, or on the CPU, whose allocator lacks an error type."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes on one device."""

    weights: int
    gradients: int
    optimizer: int  # moments of the optimizer
    average: int  # average of the weights
    slots: int
    activations: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    @property
    def checkpoint(self) -> int:
        """Bytes on disk: no gradients or activations, and one of the two states of the slots."""
        return self.weights + self.optimizer + self.average + self.slots // 2

    def summary(self) -> str:
        parts = ", ".join(f"{name} {size / MIB:.0f}" for name, size in asdict(self).items())
        return f"memory: calculated, about {self.total / MIB:.0f} MiB ({parts})"


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
    """Estimates one of `world` ranks with `slots` slots that learns `micro_batch` rows at a time.

    It ignores the savings of torch.compile.
    """
    with torch.device("meta"):
        model = model_of(config)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    gradients = weights
    if world > 1:
        gradients = 2 * weights  # flat copy for the sum over ranks
    state_bytes = 2 * config.num_positions * config.hidden_size * dtype.itemsize
    tokens_bytes = 2 * 4 * config.seq_len  # a question and its label in int32
    slot_bytes = state_bytes + tokens_bytes
    return Estimate(
        weights=weights + model.puzzle_table.nbytes,
        gradients=gradients,
        optimizer=len(OPTIMIZERS[recipe.optimizer].moment_names) * weights,
        average=weights,
        slots=2 * slots * slot_bytes,  # slots of this step, and the earlier ones for a repeat
        activations=_activation_bytes(config, recipe, dtype, micro_batch, recompute=recompute),
    )


def _activation_bytes(
    config: HRMConfig, recipe: Recipe, dtype: torch.dtype, micro_batch: int, *, recompute: bool
) -> int:
    """Bytes that autograd keeps for a window, plus those of the widest temporary product."""
    length = config.seq_len
    if config.blocks == "attention":
        length = min(length, 16)
    short = replace(config, seq_len=length, num_puzzle_ids=1)
    probed = Recipe(window=recipe.window, loss=recipe.loss, label_smoothing=recipe.label_smoothing)
    one = _kept_bytes(short, probed, dtype, 1)
    two = _kept_bytes(short, probed, dtype, 2)
    positions = micro_batch * config.num_positions
    kept = (two - one) * positions // short.num_positions
    constant = max(0, 2 * one - two)  # copies of the weights in another type
    if recompute:
        num_blocks = _num_learned_blocks(config) * recipe.window
        input_bytes = positions * config.hidden_size * dtype.itemsize
        kept = kept // num_blocks + input_bytes * num_blocks
        constant = constant // num_blocks
    widest = 2 * config.intermediate_size * positions * dtype.itemsize
    return kept + constant + widest


def _num_learned_blocks(config: HRMConfig) -> int:
    """Blocks of a segment that keep a gradient."""
    num_low = config.num_learnt_steps
    num_high = -(-num_low // config.low_cycles)
    return config.low_layers * num_low + config.high_layers * num_high


@cache
def _kept_bytes(config: HRMConfig, recipe: Recipe, dtype: torch.dtype, rows: int) -> int:
    """What autograd keeps of one window, in storages that did not exist before."""
    model = _zero_model(config)
    slots = Slots.empty(model, rows, torch.device("cpu"), dtype)
    puzzle_vector_BE = model.puzzle_table[slots.puzzle_ids_B].requires_grad_()
    before = (*model.parameters(), *model.buffers(), *slots.state().values())
    existing = {_storage(tensor) for tensor in before}
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda tensor: tensor):
        window_loss(model, slots, puzzle_vector_BE, recipe, model.config.max_segments)
    size_of = {_storage(tensor): tensor.untyped_storage().nbytes() for tensor in saved}
    return sum(size for storage, size in size_of.items() if storage not in existing)


def _zero_model(config: HRMConfig) -> HRM:
    """A model of zeros with only the cycles that keep a gradient."""
    low_cycles = min(config.low_cycles, config.num_learnt_steps)
    high_cycles = config.num_learnt_steps // low_cycles
    with torch.device("meta"):
        model = model_of(replace(config, high_cycles=high_cycles, low_cycles=low_cycles))
    model = model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    return model


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def limit_bytes(device: torch.device) -> int:
    """All memory of a GPU; on a CPU the machine's, or its control group's limit if that is less."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return memory.physical_bytes()
