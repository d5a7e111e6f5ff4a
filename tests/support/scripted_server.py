"""A real server with a scripted engine: `python scripted_server.py --port 8123 --step-s 0.05 ...`.

Its model solves the 4x4 boards of `examples` after `--segments` segments, and no others.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scripted_engine import Script, ScriptedEngine, ready_lane

from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.manifest import Halting, Manifest
from hrm_edge_runtime.worker.lanes import LaneDefaults, LaneKey, Lanes, MakeLanes
from hrm_puzzles import registry
from hrm_puzzles.puzzle import Grid, Puzzle

if TYPE_CHECKING:
    from hrm_edge_server.library import Library

NUMBERS = {
    "slots": 2,
    "queue_limit": 16,
    "segments": 3,
    "step_s": 0.005,
    "load_s": 0.0,
    "drain_s": 30.0,
    "stall_s": 60.0,
    "max_connections": 4096,
    "keep_alive_s": 75,
}
MAX_ATTEMPTS = 8
NUM_WARM_UP_STEPS = 2
NAME = "scripted"
LANE = LaneKey(NAME)
MAX_SEGMENTS = 16
PUZZLE: Puzzle = registry.get("sudoku-4x4")


def examples(count: int = 8) -> dict[str, str]:
    """Return questions with their answers, as text; the same in every process."""
    rng = np.random.default_rng(4)
    answers: dict[str, str] = {}
    for _ in range(count):
        example = PUZZLE.generate(rng, "easy")
        question = _text(example.question).replace("0", ".")
        answers[question] = _text(example.answer)
    return answers


def _text(grid: Grid) -> str:
    return "".join(map(str, grid.flat))


def scripted_lanes(
    *, num_slots: int, queue_limit: int, segments: int, step_s: float, load_s: float
) -> Lanes:
    """Make the one lane after `load_s`; runs in the engine process."""
    scripts: dict[bytes, Script] = {}
    for question, answer in examples().items():
        script = Script(answer_T=_tokens(answer), segments=segments)
        scripts[_tokens(question).tobytes()] = script

    def play(tokens_T: np.ndarray) -> Script:
        script = scripts.get(tokens_T.tobytes())
        return script or Script(answer_T=tokens_T)

    time.sleep(load_s)
    engine = ScriptedEngine(
        num_slots=num_slots,
        seq_len=PUZZLE.seq_len,
        play=play,
        step_s=step_s,
        sleep=_after_warm_up(time.sleep),
    )
    table_PE = np.zeros((1, 4), np.float32)
    lane = TaskLane(engine, PUZZLE, table_PE, queue_limit=queue_limit, max_attempts=MAX_ATTEMPTS)
    return {LANE: ready_lane(lane)}


def _after_warm_up(sleep: Callable[[float], None]) -> Callable[[float], None]:
    """The steps of the warm-up cost nothing, so that tests of slow steps start quickly."""
    calls = itertools.count()

    def sleep_later(seconds: float) -> None:
        if next(calls) >= NUM_WARM_UP_STEPS:
            sleep(seconds)

    return sleep_later


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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    for name, default in NUMBERS.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default)
    for option in ("--keys", "--tls-cert", "--tls-key"):
        parser.add_argument(option, type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--log", choices=["text", "json"], default="text")
    return parser.parse_args()


def main() -> None:
    # The engine process imports this module too and does not need these.
    from hrm_edge_runtime.contract.logs import configure
    from hrm_edge_server.auth import KeyRing
    from hrm_edge_server.cli import ServeOptions
    from hrm_edge_server.middleware import Access
    from hrm_edge_server.server import run_server

    given = _arguments()
    configure(given.log)
    make_lanes = functools.partial(
        scripted_lanes,
        num_slots=given.slots,
        queue_limit=given.queue_limit,
        segments=given.segments,
        step_s=given.step_s,
        load_s=given.load_s,
    )
    keys = KeyRing(given.keys) if given.keys else None
    options = ServeOptions(
        host=given.host,
        port=given.port,
        queue_limit=given.queue_limit,
        drain_seconds=given.drain_s,
        stall_seconds=given.stall_s,
        max_connections=given.max_connections,
        keep_alive_seconds=given.keep_alive_s,
        tls_cert=given.tls_cert,
        tls_key=given.tls_key,
        log=given.log,
    )
    models = [scripted_model(num_slots=given.slots)]
    run_server(no_library(make_lanes), models, options, Access(keys=keys))


if __name__ == "__main__":
    main()
