"""The puzzles a benchmark asks, with their labels: from a CSV, generated, or made up for a scripted engine.

Shapes: N puzzles, T tokens, E puzzle-vector size.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.scheduler import Job
from hrm_edge_runtime.engines.fake import Script
from hrm_puzzles.csv_rows import read_csv
from hrm_puzzles.puzzle import Puzzle


class QuestionError(ValueError):
    """Puzzles that cannot be had."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions:
    tokens_NT: NDArray[np.int32]
    labels_NT: NDArray[np.int32]
    source: str

    def __len__(self) -> int:
        return len(self.tokens_NT)

    def jobs(self, policy: HaltingPolicy, puzzle_vector_E: NDArray[np.float32]) -> list[Job]:
        """All puzzles as jobs of one lane, numbered from 0, arriving at once."""
        return [
            Job(job_id=number, tokens_T=tokens_T, puzzle_vector_E=puzzle_vector_E, policy=policy, arrival_s=0.0)
            for number, tokens_T in enumerate(self.tokens_NT)
        ]


def from_csv(path: Path, puzzle: Puzzle, num_puzzles: int, rng: np.random.Generator) -> Questions:
    """A random sample of a CSV file in the form of Sudoku-Extreme, without repetition."""
    rows = read_csv(path, puzzle)
    chosen = rng.permutation(len(rows))[:num_puzzles]
    return Questions(
        tokens_NT=rows.questions_NT[chosen].astype(np.int32),
        labels_NT=rows.answers_NT[chosen].astype(np.int32),
        source=f"{len(chosen)} of {path.name}",
    )


def generated(puzzle: Puzzle, difficulty: str, num_puzzles: int, rng: np.random.Generator) -> Questions:
    """Fresh puzzles of one difficulty."""
    if difficulty not in puzzle.difficulties:
        known = ", ".join(puzzle.difficulties)
        raise QuestionError(f"{puzzle.name} has no difficulty {difficulty!r}: choose one of {known}.")
    examples = [puzzle.generate(rng, difficulty) for _ in range(num_puzzles)]
    return Questions(
        tokens_NT=np.stack([puzzle.encode(example.question) for example in examples]),
        labels_NT=np.stack([puzzle.encode(example.answer) for example in examples]),
        source=f"{num_puzzles} generated, {difficulty}",
    )


def made_up(puzzle: Puzzle, num_puzzles: int, rng: np.random.Generator) -> Questions:
    """Symmetric images of one generated puzzle: cheap, provable, each with one solution, and hardly two alike."""
    example = puzzle.generate(rng, puzzle.difficulties[0])
    both = [np.repeat(puzzle.encode(grid)[None], num_puzzles, axis=0) for grid in (example.question, example.answer)]
    tokens_NT, labels_NT = puzzle.augment_BT(rng, *both)
    return Questions(tokens_NT=tokens_NT, labels_NT=labels_NT, source=f"{num_puzzles} made up")


def scripts(questions: Questions, segments_N: NDArray[np.int64]) -> dict[bytes, Script]:
    """What a scripted engine plays for each question: its label, after its number of segments."""
    return {
        tokens_T.tobytes(): Script(answer_T=label_T, segments=int(segments))
        for tokens_T, label_T, segments in zip(questions.tokens_NT, questions.labels_NT, segments_N, strict=True)
    }
