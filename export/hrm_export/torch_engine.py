"""PyTorch as an engine, the reference of a comparison on a desktop.

Shapes: B slots, T tokens, N positions, D hidden, E puzzle-vector width, P rows of the puzzle table.
"""

from pathlib import Path

import torch

from hrm_edge_runtime.engines.engine import Float32, Int32, StepOutput
from hrm_edge_runtime.manifest import Manifest
from hrm_model import checkpoint
from hrm_model.hrm import HRM, Carry


class TorchEngine:
    """A model with the slots of an engine; the carry stays in tensors, outputs are copies."""

    def __init__(self, model: HRM, num_slots: int) -> None:
        config = model.config
        self.num_slots = num_slots
        self.seq_len = config.seq_len
        self._model = model
        self._start = model.start(num_slots)
        self._carry = Carry(*(rows_BND.clone() for rows_BND in self._start))
        self._tokens_BT = torch.zeros(num_slots, config.seq_len, dtype=torch.int32)
        self._vector_BE = torch.zeros(num_slots, config.puzzle_vector_size)
        self._fresh_B = torch.ones(num_slots, dtype=torch.bool)

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._tokens_BT[slot] = torch.from_numpy(tokens_T)
        self._vector_BE[slot] = torch.tensor(puzzle_vector_E)
        self._fresh_B[slot] = True

    def move(self, source: int, target: int) -> None:
        for rows in (self._tokens_BT, self._vector_BE, self._fresh_B, *self._carry):
            rows[target] = rows[source]

    @torch.no_grad()
    def step(self, num_active: int) -> StepOutput:
        active = slice(0, num_active)
        carry, start = (Carry(*(rows_BND[active] for rows_BND in one)) for one in (self._carry, self._start))
        before = carry.where(self._fresh_B[active], start)
        output = self._model.think(before, self._tokens_BT[active], self._vector_BE[active])
        for rows, new_rows in zip(self._carry, output.carry, strict=True):
            rows[active] = new_rows
        self._fresh_B[active] = False
        return StepOutput(
            answer_BT=output.logits_BTV.argmax(-1).int().numpy(),
            halt_margin_B=self._model.margin(output).float().numpy(),
            q_halt_B=output.q_halt_B.float().numpy(),
            logits_BTV=output.logits_BTV.float().numpy(),
        )

    def close(self) -> None:
        """Nothing is held beyond the tensors."""

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        """`z_high_BND` and `z_low_BND` after the last step."""
        high_BND, low_BND = (rows[:num_active].float().numpy() for rows in self._carry)
        return high_BND, low_BND


def open_checkpoint(path: Path, manifest: Manifest, num_slots: int) -> tuple[TorchEngine, Float32]:
    """A checkpoint, or a run's file latest or best; refuses one whose sizes are not the bundle's (ValueError)."""
    model, _ = checkpoint.load(checkpoint.resolve(path))
    for name in ("seq_len", "vocab_size", "num_positions", "hidden_size", "puzzle_vector_size", "num_puzzle_ids"):
        found, expected = getattr(model.config, name), getattr(manifest, name)
        if found != expected:
            raise ValueError(
                f"{path} has {name} {found} where the bundle {manifest.name} has {expected}; give the checkpoint it "
                "was exported from."
            )
    return TorchEngine(model, num_slots), model.puzzle_table.float().numpy()
