"""What PyTorch says: golden traces for any machine to replay without torch, and an engine to compare with on a desktop.

A recurrent model may amplify rounding until two correct engines part ways, and such a trace says nothing about either.
So every puzzle also runs in float64, and only traces that survive this other rounding are kept, all for the same number
of segments. Shapes: B or N puzzles or slots, S segments, T tokens, N positions, D hidden, E puzzle-vector width, V
vocabulary.
"""

import copy
from pathlib import Path

import numpy as np
import torch

from hrm_edge_runtime.contract.arrays import Float32, Int32
from hrm_edge_runtime.contract.bundle import Golden
from hrm_edge_runtime.contract.manifest import Manifest
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_edge_runtime.parity import measures
from hrm_edge_runtime.parity.report import LOGIT_TOLERANCE
from hrm_host.progress import OnProgress, unheard
from hrm_model import checkpoint
from hrm_model.geometry import on_board
from hrm_model.hrm import HRM, Carry
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions

SIZES = ("seq_len", "vocab_size", "num_positions", "hidden_size", "puzzle_vector_size", "num_puzzle_ids")
"""Of a model, by their names in its configuration and in the manifest."""
MAX_BYTES = 1_500_000
"""Of logits in one file; a bundle travels, and 16 segments of 900 cells are already 0.7 MB a puzzle."""
MIN_TRACES = 4
FAR = 8.0
"""A trace is safe where so many times the rounding we saw still passes for parity and changes no answer and no halt.

Another rounding was up to three times as far from PyTorch, and more than four times in one 9x9 Sudoku of 24 segments.
"""


def golden_traces(
    model: HRM,
    candidates: Questions,
    threshold: float,
    count: int,
    *,
    max_bytes: int = MAX_BYTES,
    progress: OnProgress = unheard,
) -> tuple[Golden, int]:
    """Traces of the first `count` candidates (fewer where `max_bytes` hold no more) that survive another rounding.

    They cover all segments, or as many as MIN_TRACES candidates survive. Also returns how many candidates were tried.
    Refuses (ValueError) a model of which none survives its first segment: no trace could tell a right engine from a
    wrong one.
    """
    config = model.config
    count = min(count, max(1, max_bytes // (config.max_segments * config.seq_len * config.vocab_size * 4)))
    # the table may be larger than all else, so both read their rows from the one there is
    other_rounding = copy.deepcopy(model, {id(model.puzzle_table): model.puzzle_table[:0]}).double()
    steady_SN = np.empty((config.max_segments, 0), np.bool_)
    while steady_SN.shape[1] < len(candidates) and steady_SN[-1].sum() < count:
        start = steady_SN.shape[1]
        part = candidates.at(np.arange(start, min(start + count, len(candidates))))
        other = record(other_rounding, part, table_PE=model.puzzle_table)
        survives_SB = survives_rounding_SB(record(model, part), other, threshold)
        steady_SN = np.concatenate([steady_SN, survives_SB], axis=1)
        progress(min(count, int(steady_SN[-1].sum())), count)
    num_S = steady_SN.sum(axis=1)
    num_segments = int((num_S >= min(MIN_TRACES, count, max(1, num_S[0]))).sum())
    if not num_segments:
        raise ValueError(
            f"rounding alone changes what the model says about each of {len(candidates)} puzzles after one segment, so "
            "no graph of it can be compared; train it further or give more puzzles"
        )
    kept_N = np.flatnonzero(steady_SN[num_segments - 1])[:count]
    return record(model, candidates.at(kept_N), num_segments), steady_SN.shape[1]


def record(
    model: HRM, questions: Questions, num_segments: int | None = None, *, table_PE: torch.Tensor | None = None
) -> Golden:
    """Runs every puzzle through so many segments (all), in the model's own number format; results are float32.

    Their vectors are rows of the model's table, or of `table_PE`.
    """
    engine, table_PE = TorchEngine(model, len(questions)), model.puzzle_table if table_PE is None else table_PE
    for slot, asked in enumerate(questions):
        engine.load(slot, asked.tokens_T, table_PE[asked.puzzle_id].float().cpu().numpy())
    outputs = [engine.step(len(questions)) for _ in range(num_segments or model.config.max_segments)]
    return Golden(
        tokens_BT=questions.tokens_NT,
        puzzle_ids_B=questions.puzzle_ids_N,
        labels_BT=questions.labels_NT,
        answer_SBT=np.stack([output.answer_BT for output in outputs]),
        halt_margin_SB=np.stack([output.halt_margin_B for output in outputs]),
        q_halt_SB=np.stack([output.q_halt_B for output in outputs]),
        logits_SBTV=np.stack([output.logits_BTV for output in outputs if output.logits_BTV is not None]),
    )


def survives_rounding_SB(golden: Golden, other: Golden, threshold: float) -> np.typing.NDArray[np.bool_]:
    """Up to which segment rounding stays far below the parity tolerance and far from changing an answer or a halt."""
    num_segments, num_puzzles = golden.halt_margin_SB.shape
    ours_NX, theirs_NX = (one.logits_SBTV.reshape(num_segments * num_puzzles, -1) for one in (golden, other))
    logit_gap_SB = measures.logit_gap_B(theirs_NX, ours_NX).reshape(num_segments, num_puzzles)
    largest_gap_SB = np.abs(golden.logits_SBTV - other.logits_SBTV).max(axis=(2, 3))
    runner_up_SBT, best_SBT = np.moveaxis(np.partition(golden.logits_SBTV, -2, axis=-1)[..., -2:], -1, 0)
    lead_SB = (best_SBT - runner_up_SBT).min(axis=2)
    margin_gap_SB = np.abs(golden.halt_margin_SB - other.halt_margin_SB)
    distance_SB = np.abs(golden.halt_margin_SB - threshold)
    halts_alike_SB = np.minimum(LOGIT_TOLERANCE, distance_SB) >= FAR * margin_gap_SB
    answers_alike_SB = (FAR * logit_gap_SB <= LOGIT_TOLERANCE) & (lead_SB >= FAR * largest_gap_SB)
    return np.logical_and.accumulate(answers_alike_SB & halts_alike_SB, axis=0)


def torch_device(asked: str, option: str) -> str:
    """`auto` is cuda where PyTorch sees a device; refuses cuda where it sees none (ValueError)."""
    is_there = torch.cuda.is_available()
    if asked == "cuda" and not is_there:
        raise ValueError(f"{option} cuda needs a CUDA device and this PyTorch sees none; leave the option away")
    return ("cuda" if is_there else "cpu") if asked == "auto" else asked


class TorchEngine(Engine):
    """A model with the slots of an engine; the carry stays in tensors where the model is, outputs are copies."""

    def __init__(self, model: HRM, num_slots: int) -> None:
        config = model.config
        self.num_slots = num_slots
        self.seq_len = config.seq_len
        self._model = model
        self._start = model.start(num_slots)
        self._carry = Carry(*(rows_BND.clone() for rows_BND in self._start))
        device, dtype = model.high_init.device, model.high_init.dtype
        self._tokens_BT = torch.zeros(num_slots, config.seq_len, dtype=torch.int32, device=device)
        self._vector_BE = torch.zeros(num_slots, config.puzzle_vector_size, dtype=dtype, device=device)
        self._fresh_B = torch.ones(num_slots, dtype=torch.bool, device=device)

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
            answer_BT=output.logits_BTV.argmax(-1).int().cpu().numpy(),
            halt_margin_B=self._model.margin(output).float().cpu().numpy(),
            q_halt_B=output.q_halt_B.float().cpu().numpy(),
            logits_BTV=output.logits_BTV.float().cpu().numpy(),
        )

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        high_BND, low_BND = (rows[:num_active].float().cpu().numpy() for rows in self._carry)
        return high_BND, low_BND


def open_checkpoint(path: Path, manifest: Manifest, num_slots: int) -> tuple[TorchEngine, Float32]:
    """A checkpoint, or a run's file latest or best; refuses one whose sizes are not the bundle's (ValueError)."""
    model = on_board(checkpoint.load(checkpoint.resolve(path))[0], registry.get(manifest.puzzle))
    for name in SIZES:
        found, expected = getattr(model.config, name), getattr(manifest, name)
        if found != expected:
            raise ValueError(
                f"{path} has {name} {found} where the bundle {manifest.name} has {expected}; give the checkpoint it "
                "was exported from."
            )
    return TorchEngine(model, num_slots), model.puzzle_table.float().numpy()
