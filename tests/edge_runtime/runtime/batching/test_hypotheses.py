"""Hypotheses: what an attempt treats as given for a while, and what that may not touch.

With the shipped 6x6 model on ONNX Runtime, over more segments than it needs, so that every attempt
tries some.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from attempt_tools import run_out
from bundle_tools import shipped, with_manifest
from scripted_engine import Script, ScriptedEngine

from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.request import parse_request
from hrm_edge_runtime.api.schema import SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task import Result, Task
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.batching.variants import PERIOD, START, Hypotheses
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_edge_runtime.engines.onnx import OnnxEngine, engine_from_bundle
from hrm_puzzles import registry
from hrm_puzzles.data.sources import questions_made
from hrm_puzzles.puzzle import Puzzle

LONG = HaltingPolicy(kind="fixed", max_segments=START + 2 * PERIOD)
SMALL = registry.get("sudoku-4x4")
LARGE = shipped("sudoku-6x6").puzzle
OTHERS = range(4)
Said = dict[int, tuple[object, ...]]


@cache
def engine() -> OnnxEngine:
    return engine_from_bundle(shipped("sudoku-6x6"), num_slots=4, num_threads=1, want_logits=True)


def lane_over(engine: Engine, puzzle: Puzzle = LARGE, run_length: int = 1) -> TaskLane:
    return TaskLane(
        engine,
        puzzle,
        shipped("sudoku-6x6").puzzle_table,
        queue_limit=8,
        max_attempts=4,
        clock=lambda: 0.0,
        run_length=run_length,
    )


def task(task_id: int, *, guesses: bool, **more: Any) -> Task:
    tokens_T = questions_made(LARGE, 8, difficulty="medium", seed=3)[task_id].tokens_T
    fields = {"policy": LONG, "arrival_s": 0.0, "tokens_T": tokens_T, **more}
    return Task(task_id=task_id, guesses=guesses, **fields)


def said(results: Mapping[int, Result]) -> Said:
    answers = {}
    for key, one in results.items():
        if one.answer_T is not None:
            cost = (one.segments, one.total_segments)
            answers[key] = (one.answer_T.tobytes(), one.how, one.margin, one.verified, *cost)
    return answers


def alone(task: Task) -> Said:
    lane = lane_over(engine())
    lane.submit(task)
    return said(run_out(lane)[0])


def test_a_cell_gets_its_likeliest_symbol_then_its_second_and_a_full_board_none():
    full_T = np.full(16, 3, np.int32)
    question_T = full_T.copy()
    question_T[2] = 1
    logits_TV = np.zeros((16, 6), np.float32)
    logits_TV[2] = [99.0, 9.0, 0.0, 1.0, -1.0, 2.0]  # the last four are symbols
    tried = Hypotheses(question_T=question_T, num_symbols=4, rng=np.random.default_rng(0))
    for logits, symbol in ((logits_TV, 5), (-logits_TV, 3), (np.full_like(logits_TV, np.nan), 5)):
        expected_T = full_T.copy()
        expected_T[2] = symbol
        assert tried.next_T(logits).tolist() == expected_T.tolist()
    assert tried.num_tried == 3
    nothing = Hypotheses(question_T=full_T, num_symbols=4, rng=np.random.default_rng(0))
    assert nothing.next_T(logits_TV).tolist() == full_T.tolist()
    assert nothing.num_tried == 0


def test_the_same_task_tries_the_same_whatever_else_runs_and_however_long_the_runs():
    plain = {}
    guessing = {}
    for number in OTHERS:
        plain |= alone(task(number, guesses=False))
        guessing |= alone(task(number, guesses=True))
    assert {one[1] for one in guessing.values()} == {"hypotheses"}
    assert {one[1] for one in plain.values()} == {"plain"}
    assert any(plain[number][0] != guessing[number][0] for number in OTHERS)
    for run_length in (1, 8):
        lane = lane_over(engine(), run_length=run_length)
        for number in OTHERS:
            lane.submit(task(number, guesses=number % 2 == 1))
        mixed = said(run_out(lane)[0])
        for number in OTHERS:
            expected = guessing if number % 2 else plain
            assert mixed[number] == expected[number]
        assert lane.snapshot().hypotheses == 2 * 2


def test_a_cancelled_attempt_leaves_nothing_of_its_hypothesis_in_its_slot():
    lane = lane_over(engine())
    lane.submit(task(0, guesses=True))
    for _ in range(START + 2):
        lane.step()
    assert lane.cancel(0)
    lane.submit(task(1, guesses=False))
    results, _ = run_out(lane)
    assert results[0].how == "hypotheses"
    assert results[0].halted_by == "cancelled"
    assert said({1: results[1]}) == alone(task(1, guesses=False))


class Told(ScriptedEngine):
    """Answers by its script and remembers new tokens; returns logits if it `wavers`."""

    def __init__(self, script: Script, *, wavers: bool = True) -> None:
        super().__init__(num_slots=1, seq_len=SMALL.seq_len, play=lambda _: script)
        self.told = []
        self._wavers = wavers

    def replace_tokens(self, slot: int, tokens_T: np.ndarray) -> None:
        assert slot == 0
        self.told.append(tokens_T)

    def step(self, num_active: int) -> StepOutput:
        output = super().step(num_active)
        if not self._wavers:
            return output
        shape = (num_active, self.seq_len, SMALL.vocab_size)
        return output._replace(logits_BTV=np.zeros(shape, np.float32))


@pytest.mark.parametrize(("wavers", "how"), [(True, "hypotheses"), (False, "plain")])
def test_an_answer_is_judged_against_the_question_as_asked(wavers: bool, how: str):
    example = SMALL.generate(np.random.default_rng(0), "easy")
    question_T = SMALL.encode(example.question)
    answer_T = SMALL.encode(example.answer)
    ours = Told(Script(answer_T=answer_T, segments=START + 4), wavers=wavers)
    lane = lane_over(ours, SMALL)
    policy = HaltingPolicy(kind="verified", max_segments=99)
    for _ in range(4):
        lane.submit(task(0, guesses=True, tokens_T=question_T, policy=policy))
        (result,) = run_out(lane)[0].values()
        assert (result.status, result.segments) == ("proven", START + 4)
        assert result.how == how
    guesses = [told_T for told_T in ours.told if (told_T != question_T).any()]
    assert bool(guesses) == wavers
    for told_T in guesses:
        (cell,) = np.flatnonzero(told_T != question_T)
        assert question_T[cell] == 1  # an open one


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("symmetries", {}, False),
        ("hypotheses", {}, True),
        ("hypotheses", {"how": "plain"}, False),
        ("hypotheses", {"how": "hypotheses"}, True),
        ("hypotheses", {"policy": "fixed"}, False),
        ("hypotheses", {"policy": "fixed", "how": "hypotheses"}, True),
    ],
)
def test_when_attempts_guess(kind: str, fields: dict[str, Any], expected: bool):
    model = ServedModel.of(shipped("sudoku-6x6"), precision="fp32", num_slots=1, max_attempts=4)
    model = with_manifest(model, attempt_kind=kind)
    request = SolveRequest(puzzle=model.sample, **fields)
    parsed = parse_request([model], request, task_id=0, arrival_s=0.0)
    assert parsed.task.guesses == expected
    if kind == "symmetries":
        refused = SolveRequest(puzzle=model.sample, how="hypotheses")
        with pytest.raises(ServiceError, match="tries no hypotheses"):
            parse_request([model], refused, task_id=0, arrival_s=0.0)
