"""Golden traces: what PyTorch says about some puzzles after every segment, for any machine to replay without torch.

A recurrent model may amplify rounding until two correct engines part ways, and such a trace says nothing about either.
So every puzzle also runs in float64, and only traces that survive this other rounding are kept, all for the same number
of segments. Shapes: B or N puzzles, S segments, T tokens, V vocabulary.
"""

import copy

import numpy as np
import torch
from numpy.typing import NDArray

from hrm_edge_runtime.bundle import Golden
from hrm_edge_runtime.parity.gates import LOGIT_TOLERANCE
from hrm_model.hrm import HRM
from hrm_puzzles.data.held_out import Questions

MAX_BYTES = 1_500_000
"""Of logits in one file; a bundle travels, and 16 segments of 900 cells are already 0.7 MB a puzzle."""
MIN_TRACES = 4
FAR = 8.0
"""A trace is safe where so many times the rounding we saw still passes for parity and changes no answer and no halt.

Another rounding was up to three times as far from PyTorch, and more than four times in one 9x9 Sudoku of 24 segments.
"""


def golden_traces(
    model: HRM, candidates: Questions, threshold: float, count: int, *, max_bytes: int = MAX_BYTES
) -> tuple[Golden, int]:
    """Traces of the first `count` candidates (fewer where `max_bytes` hold no more) that survive another rounding.

    They cover all segments, or as many as MIN_TRACES candidates survive. Also returns how many candidates were tried.
    Refuses (ValueError) a model of which none survives its first segment: no trace could tell a right engine from a
    wrong one.
    """
    config = model.config
    count = min(count, max(1, max_bytes // (config.max_segments * config.seq_len * config.vocab_size * 4)))
    other_rounding = copy.deepcopy(model).double()
    steady_SN = np.empty((config.max_segments, 0), np.bool_)
    while steady_SN.shape[1] < len(candidates) and steady_SN[-1].sum() < count:
        start = steady_SN.shape[1]
        part = candidates.at(np.arange(start, min(start + count, len(candidates))))
        survives_SB = survives_rounding_SB(record(model, part), record(other_rounding, part), threshold)
        steady_SN = np.concatenate([steady_SN, survives_SB], axis=1)
    num_S = steady_SN.sum(axis=1)
    num_segments = int((num_S >= min(MIN_TRACES, count, max(1, num_S[0]))).sum())
    if not num_segments:
        raise ValueError(
            f"rounding alone changes what the model says about each of {len(candidates)} puzzles after one segment, so "
            "no graph of it can be compared; train it further or give more puzzles"
        )
    kept_N = np.flatnonzero(steady_SN[num_segments - 1])[:count]
    return record(model, candidates.at(kept_N), num_segments), steady_SN.shape[1]


@torch.no_grad()
def record(model: HRM, questions: Questions, num_segments: int | None = None) -> Golden:
    """Runs every puzzle through so many segments (all), in the model's own number format; results are float32."""
    tokens_BT, ids_B = torch.from_numpy(questions.tokens_NT), torch.from_numpy(questions.puzzle_ids_N).long()
    carry, outputs = model.start(len(tokens_BT)), []
    for _ in range(num_segments or model.config.max_segments):
        outputs.append(model.segment(carry, tokens_BT, ids_B))
        carry = outputs[-1].carry
    logits_SBTV = torch.stack([output.logits_BTV for output in outputs])
    return Golden(
        tokens_BT=questions.tokens_NT,
        puzzle_ids_B=questions.puzzle_ids_N,
        labels_BT=questions.labels_NT,
        answer_SBT=logits_SBTV.argmax(-1).int().numpy(),
        halt_margin_SB=torch.stack([model.margin(output) for output in outputs]).float().numpy(),
        q_halt_SB=torch.stack([output.q_halt_B for output in outputs]).float().numpy(),
        logits_SBTV=logits_SBTV.float().numpy(),
    )


def survives_rounding_SB(golden: Golden, other: Golden, threshold: float) -> NDArray[np.bool_]:
    """Up to which segment rounding stays far below the parity tolerance and far from changing an answer or a halt."""
    logit_gap_SB = np.abs(golden.logits_SBTV - other.logits_SBTV).max(axis=(2, 3))
    runner_up_SBT, best_SBT = np.moveaxis(np.partition(golden.logits_SBTV, -2, axis=-1)[..., -2:], -1, 0)
    lead_SB = (best_SBT - runner_up_SBT).min(axis=2)
    margin_gap_SB = np.abs(golden.halt_margin_SB - other.halt_margin_SB)
    distance_SB = np.abs(golden.halt_margin_SB - threshold)
    halts_alike_SB = np.minimum(LOGIT_TOLERANCE, distance_SB) >= FAR * margin_gap_SB
    answers_alike_SB = np.minimum(LOGIT_TOLERANCE, lead_SB) >= FAR * logit_gap_SB
    return np.logical_and.accumulate(answers_alike_SB & halts_alike_SB, axis=0)
