"""One segment by PyTorch, with no more work than the step graph does: the baseline of engines.

Shapes: B puzzles, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from hrm_edge_runtime.engines.engine import Int32
from hrm_model import checkpoint
from hrm_model.hrm import HRM, Carry


def segment_step(path: Path, tokens_BT: Int32, num_threads: int, *, compiled: bool) -> Callable[[], object]:
    """A function that runs one more segment of all puzzles; its answers and halting margins are computed as well."""
    torch.set_num_threads(num_threads)
    model, _ = checkpoint.load(checkpoint.resolve(path))
    segment = _segment(model.eval())
    segment = torch.compile(segment) if compiled else segment
    tokens, vector_BE = torch.from_numpy(tokens_BT), model.puzzle_table[torch.zeros(len(tokens_BT), dtype=torch.long)]
    carry = Carry(*(state.clone() for state in model.start(len(tokens_BT))))

    @torch.no_grad()
    def step() -> object:
        nonlocal carry
        carry, *answers = segment(carry, tokens, vector_BE)
        return answers

    return step


def _segment(model: HRM) -> Callable[..., tuple[Carry, Tensor, Tensor]]:
    def run(carry: Carry, tokens_BT: Tensor, vector_BE: Tensor) -> tuple[Carry, Tensor, Tensor]:
        output = model.think(carry, tokens_BT, vector_BE)
        return output.carry, output.logits_BTV.argmax(-1), model.margin(output)

    return run
