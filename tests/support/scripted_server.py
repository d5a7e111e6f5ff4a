"""A real server with a scripted engine: `python scripted_server.py --port 8123 --step-s 0.05 ...`.

Its model solves the 4x4 boards of `examples` after `--segments` segments, and no others.
"""

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from puzzle_tools import solved_boards
from scripted_engine import Script, ScriptedEngine

from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.manifest import Halting, Manifest
from hrm_edge_runtime.engines.engine import Engine
from hrm_edge_runtime.worker.lanes import LaneKey, LaneReport, Lanes, MakeLanes, OpenedLane, warm_up
from hrm_puzzles import registry
from hrm_puzzles.puzzle import Puzzle

if TYPE_CHECKING:
    from hrm_edge_server.library import Library

MAX_ATTEMPTS = 8
NAME = "scripted"
LANE = LaneKey(NAME)
MAX_SEGMENTS = 16
PUZZLE = registry.get("sudoku-4x4")


def examples() -> dict[str, str]:
    """Return eight questions with their answers, as text; the same in every process."""
    return {board["puzzle"]: board["solution"] for board in solved_boards(PUZZLE, 8)}


QUESTION, SOLUTION = next(iter(examples().items()))


def scripted_lanes(
    *, num_slots: int, queue_limit: int, segments: int, step_s: float, load_s: float
) -> Lanes:
    """Make the one lane after `load_s`; runs in the engine process."""
    scripts = {}
    for question, answer in examples().items():
        script = Script(answer_T=_tokens(answer), segments=segments)
        scripts[_tokens(question).tobytes()] = script

    def play(tokens_T: np.ndarray) -> Script:
        script = scripts.get(tokens_T.tobytes())
        return script or Script(answer_T=tokens_T)

    time.sleep(load_s)
    engine = ScriptedEngine(num_slots=num_slots, seq_len=PUZZLE.seq_len, play=play)
    lanes = lanes_over(engine, queue_limit=queue_limit, max_attempts=MAX_ATTEMPTS)
    engine.step_s = step_s  # the warm-up costs nothing, so that tests of slow steps start quickly
    return lanes


def lanes_over(
    engine: Engine,
    puzzle: Puzzle = PUZZLE,
    name: str = NAME,
    *,
    queue_limit: int = 8,
    max_attempts: int = 1,
) -> Lanes:
    """Return one lane, which is warm and not measured."""
    table_PE = np.zeros((1, 4), np.float32)
    lane = TaskLane(engine, puzzle, table_PE, queue_limit=queue_limit, max_attempts=max_attempts)
    warm_up(lane)
    report = LaneReport(num_slots=engine.num_slots, queue_limit=queue_limit)
    return {LaneKey(name): OpenedLane(lane=lane, report=report)}


def scripted_model(
    puzzle: Puzzle = PUZZLE,
    *,
    num_slots: int,
    name: str = NAME,
    max_segments: int = MAX_SEGMENTS,
    max_attempts: int = MAX_ATTEMPTS,
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


def no_library(make_lanes: MakeLanes = dict) -> "Library":
    """A library without bundles, whose lanes a test makes."""
    from hrm_edge_runtime.worker.lanes import LaneDefaults
    from hrm_edge_server.library import Library

    defaults = LaneDefaults(
        engine="cpu", num_slots=2, num_threads=1, queue_limit=8, max_attempts=MAX_ATTEMPTS
    )
    library = Library(defaults)
    library.make_lanes = lambda: make_lanes  # type: ignore[method-assign]
    return library


def _tokens(text: str) -> np.ndarray:
    grid = PUZZLE.parse(text).grid
    return PUZZLE.encode(grid)


def main() -> None:
    # The engine process imports this module too and does not need these.
    from hrm_edge_runtime.contract import logs
    from hrm_edge_server.auth import KeyRing
    from hrm_edge_server.middleware import Access
    from hrm_edge_server.options import ServeOptions
    from hrm_edge_server.server import run_server
    from hrm_host.command import Command, taking

    @dataclass(frozen=True, kw_only=True)
    class Options(ServeOptions):
        """The options of `hrm-serve`, and those of the script."""

        slots: str = "2"
        queue_limit: int = 16
        segments: int = 3
        step_s: float = 0.005
        load_s: float = 0.0

    command = Command("scripted-server")

    @command.command()
    @taking(Options)
    def serve(options: Options) -> None:
        logs.configure(options.log)
        num_slots = int(options.slots)
        make_lanes = functools.partial(
            scripted_lanes,
            num_slots=num_slots,
            queue_limit=options.queue_limit,
            segments=options.segments,
            step_s=options.step_s,
            load_s=options.load_s,
        )
        access = Access(keys=KeyRing(options.keys) if options.keys else None)
        models = [scripted_model(num_slots=num_slots)]
        run_server(no_library(make_lanes), models, options, access)

    del serve
    command()


if __name__ == "__main__":
    main()
