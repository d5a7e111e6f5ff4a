"""What every engine knows of a step graph: the names of its tensors, their shapes and types.

Shapes: B slots, T tokens, E puzzle-vector size, N positions, D hidden width, V vocabulary.
"""

from typing import Any

import numpy as np

from hrm_edge_runtime.manifest import Manifest

Shape = tuple[int, ...]

CARRIES = ("z_high_BND", "z_low_BND")
LOGITS = "logits_BTV"
ANSWERS = ("answer_BT", "halt_margin_B", "q_halt_B")
INPUTS: dict[str, Any] = {
    "tokens_BT": np.int32,
    "puzzle_vector_BE": np.float32,
    "fresh_B": np.bool_,
    "z_high_BND": np.float32,
    "z_low_BND": np.float32,
}
OUTPUTS: dict[str, Any] = {
    "answer_BT": np.int32,
    "halt_margin_B": np.float32,
    "q_halt_B": np.float32,
    "logits_BTV": np.float32,
    "z_high_BND_next": np.float32,
    "z_low_BND_next": np.float32,
}


def input_shapes(manifest: Manifest, num_rows: int) -> dict[str, Shape]:
    """The shape of each input at a batch of `num_rows`."""
    carry = (num_rows, manifest.num_positions, manifest.hidden_size)
    return {
        "tokens_BT": (num_rows, manifest.seq_len),
        "puzzle_vector_BE": (num_rows, manifest.puzzle_vector_size),
        "fresh_B": (num_rows,),
        "z_high_BND": carry,
        "z_low_BND": carry,
    }


def output_shapes(manifest: Manifest, num_rows: int) -> dict[str, Shape]:
    """The shape of each output at a batch of `num_rows`."""
    carry = (num_rows, manifest.num_positions, manifest.hidden_size)
    return {
        "answer_BT": (num_rows, manifest.seq_len),
        "halt_margin_B": (num_rows,),
        "q_halt_B": (num_rows,),
        "logits_BTV": (num_rows, manifest.seq_len, manifest.vocab_size),
        "z_high_BND_next": carry,
        "z_low_BND_next": carry,
    }
