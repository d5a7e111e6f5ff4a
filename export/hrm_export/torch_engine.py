"""PyTorch as the reference: golden traces that any machine can replay, and PyTorch as an engine.

A recurrent model may amplify rounding until two correct engines differ. Such a trace cannot tell a
right engine from a wrong one. So every puzzle runs in float32 and in float64, and only traces that
survive the difference are kept, all for the same number of segments. The kept values are those of
float64, which differ least between batch sizes and processors.
Shapes: B or N puzzles or slots, S segments, T tokens, N positions, D hidden, E puzzle-vector width,
P rows of the puzzle table, V vocabulary, X all values of a puzzle.
"""

import copy
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hrm_calibration.judge import Traces
from hrm_edge_runtime.contract.bundle import Golden
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32, StepOutput
from hrm_export.inputs import find_checkpoint, open_model
from hrm_host.progress import OnProgress, unheard
from hrm_model import checkpoint
from hrm_model.hrm import HRM, Carry
from hrm_parity import measures
from hrm_parity.accuracy import Subject
from hrm_parity.report import LOGIT_TOLERANCE
from hrm_puzzles.data.sources import Questions

SIZES = (
    "seq_len",
    "vocab_size",
    "num_positions",
    "hidden_size",
    "puzzle_vector_size",
    "num_puzzle_ids",
)
"""Sizes of a model, named as in its configuration and in the manifest."""
CANDIDATES = 16
"""Puzzles tried for each golden trace; not every one survives rounding."""
MAX_BYTES = 1_500_000
"""Logits in one file. Bundles travel, and 16 segments of 900 cells take 0.7 MB per puzzle."""
MIN_TRACES = 4
"""Traces end after the last segment that this many puzzles survive."""
FAR = 8.0
"""A trace is safe if this many times the rounding seen here passes parity and changes no result.

Another processor was up to three times as far from PyTorch, and more than four times on one 9x9
Sudoku with 24 segments.
"""


def golden_traces(
    model: HRM,
    questions: Questions,
    threshold: float,
    count: int,
    *,
    max_bytes: int = MAX_BYTES,
    progress: OnProgress = unheard,
) -> Traces:
    """Traces of the first `count` puzzles that survive another rounding, within `max_bytes`.

    They cover all segments, or as many as MIN_TRACES candidates survive. Raises ValueError if no
    candidate survives its first segment.
    """
    candidates = questions.at(np.arange(min(CANDIDATES * count, len(questions))))
    config = model.config
    trace_bytes = 4 * config.max_segments * config.seq_len * config.vocab_size  # in float32
    count = min(count, max(1, max_bytes // trace_bytes))
    # The table may be larger than everything else, so both models read the one that exists.
    no_rows = {id(model.puzzle_table): model.puzzle_table[:0]}
    in_float64 = copy.deepcopy(model, no_rows).double()
    survives_SN = np.empty((model.config.max_segments, 0), np.bool_)
    num_tried = 0
    while num_tried < len(candidates) and survives_SN[-1].sum() < count:
        end = min(num_tried + count, len(candidates))
        part = candidates.at(np.arange(num_tried, end))
        ours = record(model, part)
        other = record(in_float64, part, table_PE=model.puzzle_table)
        survives_SB = survives_rounding_SB(ours, other, threshold)
        survives_SN = np.concatenate([survives_SN, survives_SB], axis=1)
        num_tried = end
        progress(min(count, int(survives_SN[-1].sum())), count)
    num_segments = common_segments(survives_SN, count)
    if not num_segments:
        raise ValueError(
            f"rounding alone changes the model's answers to all {len(candidates)} puzzles after "
            "one segment, so no graph can be compared; train it further or give more puzzles"
        )
    kept_N = np.flatnonzero(survives_SN[num_segments - 1])[:count]
    kept = candidates.at(kept_N)
    golden = record(in_float64, kept, num_segments, table_PE=model.puzzle_table)
    in_float32 = record(model, kept, num_segments)
    rounding = float(logit_gap_SB(in_float32, golden).max())
    return Traces(golden, num_tried, rounding)


def common_segments(survives_SN: NDArray[np.bool_], count: int) -> int:
    """Segments that enough puzzles survive: MIN_TRACES, `count`, or all that survive the first."""
    num_S = survives_SN.sum(axis=1)
    num_first = max(1, num_S[0])
    enough = min(MIN_TRACES, count, num_first)
    return int((num_S >= enough).sum())


def record(
    model: HRM,
    questions: Questions,
    num_segments: int | None = None,
    *,
    table_PE: torch.Tensor | None = None,
) -> Golden:
    """Run every puzzle through `num_segments` (default: all) in the model's own number format.

    Puzzle vectors come from the model's table or from `table_PE`. Results are float32.
    """
    engine = TorchEngine(model, len(questions))
    if table_PE is None:
        table_PE = model.puzzle_table
    for slot, asked in enumerate(questions):
        vector_E = table_PE[asked.puzzle_id].float().cpu().numpy()
        engine.load(slot, asked.tokens_T, vector_E)
    if num_segments is None:
        num_segments = model.config.max_segments
    outputs = [engine.step(len(questions)) for _ in range(num_segments)]
    logits = [output.logits_BTV for output in outputs if output.logits_BTV is not None]
    return Golden(
        tokens_BT=questions.tokens_NT,
        puzzle_ids_B=questions.puzzle_ids_N,
        labels_BT=questions.labels_NT,
        answer_SBT=np.stack([output.answer_BT for output in outputs]),
        halt_margin_SB=np.stack([output.halt_margin_B for output in outputs]),
        q_halt_SB=np.stack([output.q_halt_B for output in outputs]),
        logits_SBTV=np.stack(logits),
    )


def survives_rounding_SB(golden: Golden, other: Golden, threshold: float) -> NDArray[np.bool_]:
    """Whether, up to each segment, rounding is far from changing parity, answers or halts."""
    has_parity_SB = FAR * logit_gap_SB(other, golden) <= LOGIT_TOLERANCE
    largest_gap_SB = np.abs(golden.logits_SBTV - other.logits_SBTV).max(axis=(2, 3))
    sorted_SBTV = np.partition(golden.logits_SBTV, -2, axis=-1)
    lead_SBT = sorted_SBTV[..., -1] - sorted_SBTV[..., -2]
    answers_SB = lead_SBT.min(axis=2) >= FAR * largest_gap_SB
    margin_gap_SB = np.abs(golden.halt_margin_SB - other.halt_margin_SB)
    distance_SB = np.abs(golden.halt_margin_SB - threshold)
    halts_SB = np.minimum(LOGIT_TOLERANCE, distance_SB) >= FAR * margin_gap_SB
    return np.logical_and.accumulate(has_parity_SB & answers_SB & halts_SB, axis=0)


def logit_gap_SB(ours: Golden, reference: Golden) -> NDArray[np.floating]:
    num_segments, num_puzzles = reference.halt_margin_SB.shape
    num_rows = num_segments * num_puzzles
    ours_NX = ours.logits_SBTV.reshape(num_rows, -1)
    reference_NX = reference.logits_SBTV.reshape(num_rows, -1)
    gap_N = measures.logit_gap_B(ours_NX, reference_NX)
    return gap_N.reshape(num_segments, num_puzzles)


def torch_device(device: str, option: str) -> str:
    """Resolve `auto` to cuda if PyTorch sees a device; raises ValueError for cuda without one."""
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        problem = f"{option} cuda needs a CUDA device, but this PyTorch sees none"
        raise ValueError(f"{problem}; omit {option}")
    if device == "auto":
        return "cuda" if has_cuda else "cpu"
    return device


class TorchEngine(Engine):
    """A model with the slots of an engine. Outputs are copies; the carry stays on the device."""

    def __init__(self, model: HRM, num_slots: int) -> None:
        config = model.config
        device = model.high_init.device
        dtype = model.high_init.dtype
        self.num_slots = num_slots
        self.seq_len = config.seq_len
        self._model = model
        self._start = model.start(num_slots)
        self._carry = Carry(*(rows_BND.clone() for rows_BND in self._start))
        tokens_shape = (num_slots, config.seq_len)
        vector_shape = (num_slots, config.puzzle_vector_size)
        self._tokens_BT = torch.zeros(tokens_shape, dtype=torch.int32, device=device)
        self._vector_BE = torch.zeros(vector_shape, dtype=dtype, device=device)
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
        carry = Carry(*(rows_BND[active] for rows_BND in self._carry))
        start = Carry(*(rows_BND[active] for rows_BND in self._start))
        before = carry.where(self._fresh_B[active], start)
        output = self._model.think(before, self._tokens_BT[active], self._vector_BE[active])
        for rows, new_rows in zip(self._carry, output.carry, strict=True):
            rows[active] = new_rows
        self._fresh_B[active] = False
        margin_B = self._model.margin(output)
        return StepOutput(
            answer_BT=output.logits_BTV.argmax(-1).int().cpu().numpy(),
            halt_margin_B=margin_B.float().cpu().numpy(),
            q_halt_B=output.q_halt_B.float().cpu().numpy(),
            logits_BTV=output.logits_BTV.float().cpu().numpy(),
        )

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        high_BND, low_BND = (rows[:num_active].float().cpu().numpy() for rows in self._carry)
        return high_BND, low_BND


def open_checkpoint(
    path: Path,
    *,
    board: str | None,
    engine: str,
    num_slots: int,
    num_threads: int | None,
    max_segments: int | None,
) -> Subject:
    """The model of a checkpoint or run, on `engine`: auto, cpu or cuda."""
    if engine not in ("auto", "cpu", "cuda"):
        problem = f"--engine {engine} is for bundles"
        raise ValueError(f"{problem}; a checkpoint runs in PyTorch on cpu or cuda")
    source = checkpoint.resolve(find_checkpoint(path, None))
    model, puzzle, _ = open_model(source, board)
    device = torch_device(engine, "--engine")
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    return Subject(
        name=str(source),
        precision=f"PyTorch on {device}",
        puzzle=puzzle,
        puzzle_table_PE=model.puzzle_table.float().numpy(),
        max_segments=max_segments or model.config.max_segments,
        engine=TorchEngine(model.to(device), num_slots),
    )
