"""Which server is measured, and the questions it is asked: a shipped bundle on its engine, or the scripted one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks.benches import questions_for
from hrm_benchmarks.serving.running import serve_command
from hrm_benchmarks.serving.scripted import Scripted
from hrm_edge_runtime.bundle import Bundle, find_bundle
from hrm_puzzles import registry
from hrm_puzzles.data.held_out import Questions
from hrm_puzzles.puzzle import Puzzle


@dataclass(frozen=True, kw_only=True, eq=False)
class Contestant:
    """A server by its command, with questions as request bodies and the answers known to be right."""

    title: str
    command: Sequence[str]
    bodies: Sequence[bytes]
    solutions: Sequence[object]
    num_slots: int
    queue_limit: int
    max_segments: int


def over_bundle(
    name: str | None,
    *,
    engine: str,
    threads: int,
    num_slots: int,
    queue_limit: int,
    csv: Path | None,
    difficulty: str | None,
    num_puzzles: int,
    seed: int,
) -> Contestant:
    """`hrm-serve` over a bundle; refuses (ValueError) one that cannot be found."""
    path = find_bundle(name)
    bundle = Bundle.open(path)
    asked = questions_for(bundle, csv, difficulty, num_puzzles, seed)
    options = {"engine": engine, "threads": threads, "slots": num_slots, "queue-limit": queue_limit}
    flags = [f"--{option}={value}" for option, value in options.items()]
    return Contestant(
        title=f"{bundle.manifest.name} on {engine}, {num_slots} slots, {threads} threads, {asked.title}",
        command=serve_command(str(path), *flags),
        bodies=_bodies(bundle.puzzle, asked),
        solutions=_written(bundle.puzzle, asked.labels_NT),
        num_slots=num_slots,
        queue_limit=queue_limit,
        max_segments=bundle.manifest.max_segments,
    )


def over_script(one: Scripted) -> Contestant:
    """The server over a scripted engine."""
    puzzle, asked = registry.get(one.puzzle), one.questions()
    return Contestant(
        title=f"scripted engine, {one.segments}, {one.num_slots} slots, {one.cost} cost of {one.step_ms:g} ms a step, "
        f"{one.puzzle}, {asked.title}",
        command=one.command(),
        bodies=_bodies(puzzle, asked),
        solutions=_written(puzzle, asked.labels_NT),
        num_slots=one.num_slots,
        queue_limit=one.queue_limit,
        max_segments=16,
    )


def _bodies(puzzle: Puzzle, asked: Questions) -> list[bytes]:
    return [json.dumps({"puzzle": puzzle_text}).encode() for puzzle_text in _written(puzzle, asked.tokens_NT)]


def _written(puzzle: Puzzle, tokens_NT: NDArray[np.int32]) -> list[object]:
    """In the notation of the puzzle's own sample."""
    notation = puzzle.parse(puzzle.sample([])).notation
    return [puzzle.write(puzzle.decode(tokens_T), notation) for tokens_T in tokens_NT]
