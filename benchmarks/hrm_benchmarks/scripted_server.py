"""A real server over a scripted engine, whose HTTP process and engine process load nothing else.

    python -m hrm_benchmarks.scripted_server --port 8123 --step-ms 5

Its puzzles are made up from a seed, so the seed tells every question, its answer and its segments.
"""

import argparse
import functools
import logging
import sys
from dataclasses import asdict
from typing import Any

import numpy as np

from hrm_benchmarks.scripted import MAX_SEGMENTS, Scripted, draw_segments
from hrm_edge_runtime.batching.attempts import Attempts
from hrm_edge_runtime.http.models import ServedModel
from hrm_edge_runtime.manifest import Halting, Manifest
from hrm_edge_runtime.worker.lanes import Lanes, ready_lane
from hrm_puzzles import registry
from hrm_puzzles.puzzle import Puzzle

NAME = "scripted"


def scripted_lanes(one: Scripted) -> Lanes:
    """Made in the engine process."""
    segments_N = draw_segments(one.segments, np.random.default_rng(one.seed), one.num_puzzles)
    engine = one.engine(one.questions(), segments_N)
    lane = Attempts(engine, registry.get(one.puzzle), np.zeros((1, 4), np.float32), queue_limit=one.queue_limit)
    return {NAME: ready_lane(lane)}


def command_of(one: Scripted) -> list[str]:
    """How to start it, less the port."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in asdict(one).items()]
    return [sys.executable, "-m", "hrm_benchmarks.scripted_server", *flags]


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
        manifest=manifest,
        puzzle=puzzle,
        precision="fp32",
        num_slots=num_slots,
        max_attempts=max_attempts,
        lane=manifest.name,
    )


def main() -> None:
    from hrm_edge_runtime.http.server import ServerOptions, run_server  # the engine process does not need it

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    for name, value in asdict(Scripted()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given: dict[str, Any] = vars(parser.parse_args())
    port = given.pop("port")
    one = Scripted(**given)
    logging.basicConfig(level=logging.INFO)
    options = ServerOptions(host="127.0.0.1", port=port, queue_limit=one.queue_limit, drain_s=30.0, stall_s=60.0)
    model = scripted_model(registry.get(one.puzzle), num_slots=one.num_slots)
    run_server(functools.partial(scripted_lanes, one), [model], options)


if __name__ == "__main__":
    main()
