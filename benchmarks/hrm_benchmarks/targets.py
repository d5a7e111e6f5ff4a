"""The servers that are measured, with questions for them: a bundle on its engine, or a scripted engine."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks.policies import questions_for
from hrm_benchmarks.scripted import MAX_SEGMENTS, Scripted
from hrm_benchmarks.scripted_server import command_of
from hrm_benchmarks.server import serve_command
from hrm_edge_runtime.bundle import Bundle, find_bundle
from hrm_puzzles import registry
from hrm_puzzles.data.held_out import Questions
from hrm_puzzles.puzzle import Puzzle


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """A server by its command, with questions as request bodies and the answers known to be right."""

    title: str
    command: Sequence[str]
    bodies: Sequence[bytes]
    solutions: Sequence[object]
    max_segments: int


def bundle_target(
    name: str,
    *,
    engine: str,
    threads: int,
    num_slots: int,
    queue_limit: int,
    csv: Path | None,
    difficulty: str | None,
    num_puzzles: int,
    seed: int,
) -> Target:
    """`hrm-serve` over a bundle; refuses (ValueError) one that cannot be found."""
    path = find_bundle(name)
    bundle = Bundle.open(path)
    asked = questions_for(bundle, csv, difficulty, num_puzzles, seed)
    options = {"engine": engine, "threads": threads, "slots": num_slots, "queue-limit": queue_limit}
    return _target(
        f"{bundle.manifest.name} on {engine}, {num_slots} slots, {threads} threads, {asked.title}",
        serve_command(str(path), *(f"--{option}={value}" for option, value in options.items())),
        bundle.puzzle,
        asked,
        bundle.manifest.max_segments,
    )


def scripted_target(one: Scripted) -> Target:
    """The server over a scripted engine."""
    asked = one.questions()
    title = f"{one.title}, {one.puzzle}, {asked.title}"
    return _target(title, command_of(one), registry.get(one.puzzle), asked, MAX_SEGMENTS)


def _target(title: str, command: Sequence[str], puzzle: Puzzle, asked: Questions, max_segments: int) -> Target:
    notation = puzzle.parse(puzzle.sample([])).notation

    def written(tokens_NT: NDArray[np.int32]) -> list[object]:
        return [puzzle.write(puzzle.decode(tokens_T), notation) for tokens_T in tokens_NT]

    return Target(
        title=title,
        command=command,
        bodies=[json.dumps({"puzzle": question}).encode() for question in written(asked.tokens_NT)],
        solutions=written(asked.labels_NT),
        max_segments=max_segments,
    )
