"""Held-out puzzles as jobs of a lane, and puzzles made up for a scripted engine.

Shapes: N puzzles, T tokens, E puzzle-vector size.
"""

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.scheduler import Attempt
from hrm_edge_runtime.engines.scripted import Script
from hrm_puzzles.data.held_out import Questions
from hrm_puzzles.puzzle import Puzzle


def jobs_of(questions: Questions, policy: HaltingPolicy, puzzle_vector_E: NDArray[np.float32]) -> list[Attempt]:
    """All puzzles as jobs of one lane, numbered from 0, arriving at once."""
    return [
        Attempt(
            attempt_id=asked.index,
            tokens_T=asked.tokens_T,
            puzzle_vector_E=puzzle_vector_E,
            policy=policy,
            arrival_s=0.0,
        )
        for asked in questions
    ]


def made_up(puzzle: Puzzle, num_puzzles: int, rng: np.random.Generator) -> Questions:
    """Symmetric images of one generated puzzle: cheap, provable, each with one solution, and hardly two alike."""
    example = puzzle.generate(rng, puzzle.difficulties[0])
    both = [np.repeat(puzzle.encode(grid)[None], num_puzzles, axis=0) for grid in (example.question, example.answer)]
    tokens_NT, labels_NT = puzzle.augment_BT(rng, *both)
    ids_N = np.zeros(num_puzzles, np.int32)
    return Questions(tokens_NT=tokens_NT, labels_NT=labels_NT, puzzle_ids_N=ids_N, source="made up")


def scripts(questions: Questions, segments_N: NDArray[np.int64]) -> dict[bytes, Script]:
    """What a scripted engine plays for each question: its label, after its number of segments."""
    return {
        asked.tokens_T.tobytes(): Script(answer_T=asked.labels_T, segments=int(segments))
        for asked, segments in zip(questions, segments_N, strict=True)
    }
