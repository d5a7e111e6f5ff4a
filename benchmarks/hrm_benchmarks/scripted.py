"""A scripted engine with its puzzles, and a real server over it.

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
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.manifest import Halting, Manifest
from hrm_edge_runtime.engines.scripted import Script, ScriptedEngine
from hrm_edge_runtime.worker.lanes import LaneKey, Lanes, ready_lane
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import Puzzle

NAME = "scripted"
MAX_SEGMENTS = 16  # the limit of the published evaluation
EASY_SEGMENTS = np.arange(1, 4)  # the lower hump of a bimodal shape
HARD_SEGMENTS = np.arange(12, 17)  # the upper hump

Shares = NDArray[np.float64]
Segments = NDArray[np.int64]

Cost = Literal["flat", "half", "linear"]
COST_OF_STEP: dict[Cost, float] = {"flat": 1.0, "half": 0.5, "linear": 0.0}
"""In units of `step_ms`; each row costs the rest."""


class RealClock:
    """Wall seconds."""

    def __call__(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class VirtualClock:
    """A virtual clock that advances only in `sleep`, so accounting is exact and instant."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


def segment_shares(name: str) -> Shares:
    """Return a distribution by its name, or a recorded one.

    A recorded shape is a JSON file: the output of `hrm-bench serve --json`, or a list of counts.
    Raises ValueError for anything else.
    """
    if name in SHAPES:
        return SHAPES[name]
    path = Path(name)
    if not path.is_file():
        known = ", ".join(SHAPES)
        raise ValueError(
            f"{name!r} is not a segment distribution: name a JSON file or one of {known}."
        )
    try:
        counts_S = _recorded_counts(path)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{name} lacks a segment histogram ({error}): record one with --json."
        ) from error
    is_histogram = counts_S.ndim == 1 and counts_S.sum() > 0 and counts_S.min() >= 0
    if not is_histogram:
        raise ValueError(
            f"{name} does not hold counts: give [0, puzzles halted after 1, after 2, ...]."
        )
    return counts_S / counts_S.sum()


def _recorded_counts(path: Path) -> Shares:
    content: Any = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, dict):
        content = content["runs"]["refill"]["segments_histogram"]
    return np.array(content, np.float64)[1:]


def draw_segments(name: str, rng: np.random.Generator, num_puzzles: int) -> Segments:
    """Return random numbers of segments with the distribution of that name."""
    share_S = segment_shares(name)
    segments_S = np.arange(1, len(share_S) + 1)
    return rng.choice(segments_S, size=num_puzzles, p=share_S)


def geometric(mean: float) -> Shares:
    """Return a geometric distribution with this mean, truncated at `MAX_SEGMENTS`."""
    segments_S = np.arange(1, MAX_SEGMENTS + 1)
    # The sum of (s - mean) ratio^s is zero. Its coefficients change sign once, so exactly one
    # root is positive.
    roots = np.roots((segments_S - mean)[::-1])
    is_real = abs(roots.imag) < 1e-9
    (ratio,) = roots[is_real & (roots.real > 0)].real
    weight_S = ratio**segments_S
    return weight_S / weight_S.sum()


def bimodal(mean: float) -> Shares:
    """Return a mixture of easy and hard puzzles with this mean."""
    easy_mean = EASY_SEGMENTS.mean()
    hard_mean = HARD_SEGMENTS.mean()
    hard_share = (mean - easy_mean) / (hard_mean - easy_mean)
    share_S = np.zeros(MAX_SEGMENTS)
    share_S[EASY_SEGMENTS - 1] = (1 - hard_share) / len(EASY_SEGMENTS)
    share_S[HARD_SEGMENTS - 1] = hard_share / len(HARD_SEGMENTS)
    return share_S


SHAPES: dict[str, Shares] = {}
for _mean in (3, 5, 8):
    SHAPES[f"geo{_mean}"] = geometric(_mean)
    SHAPES[f"bim{_mean}"] = bimodal(_mean)


def made_up(puzzle: Puzzle, num_puzzles: int, rng: np.random.Generator) -> Questions:
    """Return symmetric images of one generated puzzle.

    They are cheap, provable, and have one solution each; duplicates are rare.
    """
    example = puzzle.generate(rng, puzzle.difficulties[0])
    question_T = puzzle.encode(example.question)
    answer_T = puzzle.encode(example.answer)
    questions_NT = np.repeat(question_T[None], num_puzzles, axis=0)
    answers_NT = np.repeat(answer_T[None], num_puzzles, axis=0)
    tokens_NT, labels_NT = puzzle.augment_BT(rng, questions_NT, answers_NT)
    return Questions(
        tokens_NT=tokens_NT,
        labels_NT=labels_NT,
        puzzle_ids_N=np.zeros(num_puzzles, np.int32),
        source="made up",
    )


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """A scripted engine and its puzzles; a step of B rows takes `step_ms` times the cost of B.

    The seed determines every question, its answer and its number of segments.
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
        puzzle = registry.get(self.puzzle)
        return made_up(puzzle, self.puzzles, np.random.default_rng(self.seed))

    def engine(
        self,
        questions: Questions,
        segments_N: Segments,
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> ScriptedEngine:
        """Return an engine that answers a question with its label after its number of segments.

        Any other question is its own answer after one segment.
        """
        script_of: dict[bytes, Script] = {}
        for question, segments in zip(questions, segments_N, strict=True):
            script = Script(answer_T=question.labels_T, segments=int(segments))
            script_of[question.tokens_T.tobytes()] = script

        def play(tokens_T: NDArray[np.int32]) -> Script:
            script = script_of.get(tokens_T.tobytes())
            return script or Script(answer_T=tokens_T)

        return ScriptedEngine(
            num_slots=self.slots,
            seq_len=questions.tokens_NT.shape[1],
            play=play,
            step_s=self._step_s,
            sleep=sleep,
        )

    def _step_s(self, num_rows: int) -> float:
        of_step = COST_OF_STEP[self.cost]
        of_row = 1 - of_step
        return self.step_ms / 1e3 * (of_step + of_row * num_rows)


def scripted_lanes(script: Scripted) -> Lanes:
    """Make the one lane; runs in the engine process."""
    rng = np.random.default_rng(script.seed)
    segments_N = draw_segments(script.segments, rng, script.puzzles)
    engine = script.engine(script.questions(), segments_N)
    puzzle = registry.get(script.puzzle)
    table_PE = np.zeros((1, 4), np.float32)
    lane = TaskLane(engine, puzzle, table_PE, queue_limit=script.queue_limit)
    return {LaneKey(NAME): ready_lane(lane)}


def scripted_model(
    puzzle: Puzzle,
    *,
    num_slots: int,
    name: str = NAME,
    max_segments: int = MAX_SEGMENTS,
    max_attempts: int = 1,
) -> ServedModel:
    """Return what the HTTP process knows of a model without a bundle."""
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
        manifest=manifest,
        puzzle=puzzle,
        precision="fp32",
        num_slots=num_slots,
        max_attempts=max_attempts,
        lane=LaneKey(name),
    )


def main() -> None:
    # The engine process imports this module too and does not need the server.
    from hrm_edge_runtime.http.server import ServerOptions, run_server

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("script", type=json.loads, help="JSON object with fields of Scripted.")
    arguments = parser.parse_args()
    script = Scripted(**arguments.script)
    logging.basicConfig(level=logging.INFO)
    options = ServerOptions(
        host="127.0.0.1",
        port=arguments.port,
        queue_limit=script.queue_limit,
        drain_s=30.0,
        stall_s=60.0,
    )
    model = scripted_model(registry.get(script.puzzle), num_slots=script.slots)
    run_server(functools.partial(scripted_lanes, script), [model], options)


if __name__ == "__main__":
    main()
