"""A scripted engine and its work (made-up puzzles, their segments, what a step costs), and a real server over it.

    python -m hrm_benchmarks.scripted --port 8123 '{"step_ms": 5}'

Shapes: N puzzles, S segments (`share_S[s]` is the share of puzzles that take s + 1 segments).
"""

import argparse
import functools
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.manifest import Halting, Manifest
from hrm_edge_runtime.engines.scripted import Script, ScriptedEngine
from hrm_edge_runtime.worker.lanes import Lanes, ready_lane
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import Puzzle

NAME = "scripted"
MAX_SEGMENTS = 16
EASY, HARD = range(1, 4), range(12, 17)  # the two humps of a bimodal shape

Shares = NDArray[np.float64]

Cost = Literal["flat", "half", "linear"]
COST_OF: dict[Cost, tuple[float, float]] = {"flat": (1.0, 0.0), "half": (0.5, 0.5), "linear": (0.0, 1.0)}
"""Of a step, and of each of its rows."""


class VirtualClock:
    """Seconds that pass only in `sleep`: exact accounting in no time."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def segment_shares(name: str) -> Shares:
    """A shape by name, or a recorded one: a JSON file from `hrm-bench serve --json`, or of a list of counts."""
    if name in SHAPES:
        return SHAPES[name]
    if not Path(name).is_file():
        raise ValueError(f"{name!r} is no segment distribution: name a JSON file or one of {', '.join(SHAPES)}.")
    try:
        content = json.loads(Path(name).read_text(encoding="utf-8"))
        counts = content["runs"]["refill"]["segments_histogram"] if isinstance(content, dict) else content
        counts_S = np.array(counts, np.float64)[1:]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name} holds no segment histogram ({error}): record one with --json.") from error
    if counts_S.ndim != 1 or not counts_S.sum() > 0 or counts_S.min() < 0:
        raise ValueError(f"{name} holds no counts of segments: give [0, after 1, after 2, ...].")
    return counts_S / counts_S.sum()


def draw_segments(name: str, rng: np.random.Generator, num_puzzles: int) -> NDArray[np.int64]:
    share_S = segment_shares(name)
    return rng.choice(np.arange(1, len(share_S) + 1), size=num_puzzles, p=share_S)


def geometric(mean: float) -> Shares:
    """A geometric law cut off at 16 segments, with that mean."""
    segments_S = np.arange(1, MAX_SEGMENTS + 1)
    # sum of (s - mean) ratio^s is 0; its coefficients change sign once, so one root is positive
    roots = np.roots((segments_S - mean)[::-1])
    (ratio,) = roots[(abs(roots.imag) < 1e-9) & (roots.real > 0)].real
    weight_S = ratio**segments_S
    return weight_S / weight_S.sum()


def bimodal(mean: float) -> Shares:
    """Easy puzzles of 1 to 3 segments mixed with hard ones of 12 to 16, with that mean."""
    hard = (mean - np.mean(EASY)) / (np.mean(HARD) - np.mean(EASY))
    share_S = np.zeros(MAX_SEGMENTS)
    share_S[np.array(EASY) - 1] = (1 - hard) / len(EASY)
    share_S[np.array(HARD) - 1] = hard / len(HARD)
    return share_S


SHAPES = {f"{kind}{mean}": shape(mean) for kind, shape in (("geo", geometric), ("bim", bimodal)) for mean in (3, 5, 8)}


def made_up(puzzle: Puzzle, num_puzzles: int, rng: np.random.Generator) -> Questions:
    """Symmetric images of one generated puzzle: cheap, provable, each with one solution, and hardly two alike."""
    example = puzzle.generate(rng, puzzle.difficulties[0])
    both = [np.repeat(puzzle.encode(grid)[None], num_puzzles, axis=0) for grid in (example.question, example.answer)]
    tokens_NT, labels_NT = puzzle.augment_BT(rng, *both)
    ids_N = np.zeros(num_puzzles, np.int32)
    return Questions(tokens_NT=tokens_NT, labels_NT=labels_NT, puzzle_ids_N=ids_N, source="made up")


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """A scripted engine and its work; a step over B rows sleeps `step_ms` times the cost of B.

    The puzzles are made up from the seed, so it tells every question, its answer and its segments.
    """

    puzzle: str = "sudoku"
    puzzles: int = 1000
    seed: int = 0
    segments: str = "geo5"
    step_ms: float = 0.0
    cost: Cost = "flat"
    slots: int = 8
    queue_limit: int = 64

    @property
    def title(self) -> str:
        step = f"{self.cost} cost of {self.step_ms:g} ms a step"
        return f"scripted engine, {self.segments}, {self.slots} slots, {step}"

    def questions(self) -> Questions:
        return made_up(registry.get(self.puzzle), self.puzzles, np.random.default_rng(self.seed))

    def engine(
        self, asked: Questions, segments_N: NDArray[np.int64], *, sleep: Callable[[float], object] = time.sleep
    ) -> ScriptedEngine:
        """Plays every question's label after its number of segments; any other question is its own answer."""
        script_of = {
            one.tokens_T.tobytes(): Script(answer_T=one.labels_T, segments=int(segments))
            for one, segments in zip(asked, segments_N, strict=True)
        }
        of_step, of_row = COST_OF[self.cost]
        return ScriptedEngine(
            num_slots=self.slots,
            seq_len=asked.tokens_NT.shape[1],
            play=lambda tokens_T: script_of.get(tokens_T.tobytes()) or Script(answer_T=tokens_T),
            step_s=lambda num_rows: self.step_ms / 1e3 * (of_step + of_row * num_rows),
            sleep=sleep,
        )


def scripted_lanes(one: Scripted) -> Lanes:
    """Made in the engine process."""
    segments_N = draw_segments(one.segments, np.random.default_rng(one.seed), one.puzzles)
    engine = one.engine(one.questions(), segments_N)
    lane = TaskLane(engine, registry.get(one.puzzle), np.zeros((1, 4), np.float32), queue_limit=one.queue_limit)
    return {NAME: ready_lane(lane)}


def scripted_model(
    puzzle: Puzzle, *, num_slots: int, name: str = NAME, max_segments: int = MAX_SEGMENTS, max_attempts: int = 1
) -> ServedModel:
    """What the HTTP process knows of a model that has no bundle."""
    manifest = Manifest(
        name=name,
        puzzle=puzzle.name,
        seq_len=puzzle.seq_len,
        vocab_size=puzzle.vocab_size,
        num_positions=puzzle.seq_len + 1,
        hidden_size=4,
        puzzle_vector_size=4,
        num_puzzle_ids=1,
        max_segments=max_segments,
        halting=Halting(policy="verified"),
        precisions={"fp32": "step.fp32.onnx"},
        files={},
    )
    return ServedModel(
        manifest=manifest, puzzle=puzzle, precision="fp32", num_slots=num_slots, max_attempts=max_attempts, lane=name
    )


def main() -> None:
    from hrm_edge_runtime.http.server import ServerOptions, run_server  # the engine process does not need it

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("scripted", type=json.loads, help="JSON of the fields of Scripted")
    given = parser.parse_args()
    one = Scripted(**given.scripted)
    logging.basicConfig(level=logging.INFO)
    options = ServerOptions(host="127.0.0.1", port=given.port, queue_limit=one.queue_limit, drain_s=30.0, stall_s=60.0)
    model = scripted_model(registry.get(one.puzzle), num_slots=one.slots)
    run_server(functools.partial(scripted_lanes, one), [model], options)


if __name__ == "__main__":
    main()
