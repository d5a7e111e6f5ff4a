"""Published checkpoints in small: their settings and random weights under their key names."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

SEQ_LEN = 16  # of 4x4 Sudoku
VOCAB = 6
WIDTH = 32
HEADS = 4
LAYERS = 2
IDS = 3
INNER = 256
SEGMENTS = 8
TRM_PREFIX = 16
Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


def architecture(positions: str, cycles: tuple[int, int]) -> dict[str, Any]:
    return {
        "name": "hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1",
        "loss": {"name": "losses@ACTLossHead", "loss_type": "stablemax_cross_entropy"},
        "H_cycles": cycles[0],
        "L_cycles": cycles[1],
        "H_layers": LAYERS,
        "L_layers": LAYERS,
        "hidden_size": WIDTH,
        "num_heads": HEADS,
        "expansion": 4,
        "puzzle_emb_ndim": 40,
        "pos_encodings": positions,
        "halt_max_steps": SEGMENTS,
        "halt_exploration_prob": 0.1,
    }


class Weights:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.state: Arrays = {}

    def add(self, name: str, *shape: int, spread: float) -> None:
        values = spread * self.rng.standard_normal(shape)
        self.state[f"inner.{name}"] = values.astype(np.float32)

    def matrix(self, name: str, outputs: int, inputs: int, gain: float = 0.7) -> None:
        """At a gain of 1 an untrained recurrence is chaotic: no implementation agrees to 1e-5."""
        self.add(f"{name}.weight", outputs, inputs, spread=gain * inputs**-0.5)


def published_state(
    positions: str = "rope",
    prefix: int = 2,
    levels: str = "HL",
    seed: int = 7,
    vocab: int = VOCAB,
    table: tuple[int, int] = (IDS, 40),
) -> Arrays:
    """Return weights; `table` is the shape of the puzzle table, which is left out if empty."""
    weights = Weights(seed)
    spread = WIDTH**-0.5
    weights.add("H_init", WIDTH, spread=1)
    weights.add("L_init", WIDTH, spread=1)
    weights.add("embed_tokens.embedding_weight", vocab, WIDTH, spread=spread)
    weights.add("lm_head.weight", vocab, WIDTH, spread=spread)
    weights.add("q_head.weight", 2, WIDTH, spread=0.3)
    weights.add("q_head.bias", 2, spread=1)
    if table[1]:
        weights.add("puzzle_emb.weights", *table, spread=0.3)
    if positions == "learned":
        weights.add("embed_pos.embedding_weight", SEQ_LEN + prefix, WIDTH, spread=spread)
    for level in levels:
        for layer in range(LAYERS):
            key = f"{level}_level.layers.{layer}"
            weights.matrix(f"{key}.self_attn.qkv_proj", 3 * WIDTH, WIDTH)
            weights.matrix(f"{key}.self_attn.o_proj", WIDTH, WIDTH)
            weights.matrix(f"{key}.mlp.gate_up_proj", 2 * INNER, WIDTH)
            weights.matrix(f"{key}.mlp.down_proj", WIDTH, INNER)
    return weights.state


def tensors_of(state: Mapping[str, Array], prefix: str = "") -> dict[str, Tensor]:
    return {prefix + name: torch.from_numpy(array) for name, array in state.items()}
