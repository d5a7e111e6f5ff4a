"""Calibration records what serving computes: the same answers, every segment that is reached."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from export_tools import SUDOKU, questions, run, small_graph, table
from scripted_engine import Script, ScriptedEngine

from hrm_calibration import rollouts
from hrm_calibration.quantize import call_sites, with_outputs
from hrm_calibration.rollouts import ServedGraph, recording_engine, session_of
from hrm_edge_runtime.contract.halting import HaltingPolicy, PolicyKind
from hrm_edge_runtime.engines.onnx import CPU, CUDA, OnnxEngine, Provider
from hrm_parity.halting_curve import (
    Rollout,
    choose,
    learned_curve,
    roll_out,
    score_policy,
)
from hrm_parity.outcomes import Outcomes
from hrm_puzzles.puzzle import RIGHT, UNKNOWN

GRAPH = small_graph()
LEARNED = HaltingPolicy(kind="learned", max_segments=4)
SERVED = ServedGraph(graph=GRAPH, puzzle=SUDOKU, puzzle_table=table(), policy=LEARNED)


def onnx_engine(path: Path, num_slots: int, provider: Provider = CPU) -> OnnxEngine:
    file = path / "step.onnx"
    file.write_bytes(GRAPH.SerializeToString())
    return OnnxEngine(file, num_slots=num_slots, num_threads=1, provider=provider)


def scripted(
    tokens_NT: np.ndarray, answers_NT: np.ndarray, segments: Sequence[int], num_slots: int
) -> ScriptedEngine:
    """Return an engine that is sure of these answers after so many segments."""
    scripts = {}
    for tokens_T, answer_T, count in zip(tokens_NT, answers_NT, segments, strict=True):
        scripts[tokens_T.tobytes()] = Script(answer_T=answer_T, segments=count)
    return ScriptedEngine(
        num_slots=num_slots, seq_len=16, play=lambda tokens_T: scripts[tokens_T.tobytes()]
    )


def same(one: Outcomes, other: Outcomes) -> bool:
    return all(map(np.array_equal, one, other))


def test_recorder_lane_and_whole_rollouts_agree(tmp_path: Path):
    asked = questions(20)
    served = SERVED.solve(onnx_engine(tmp_path, 3), asked)
    recorded, _ = SERVED.recorded(asked)
    assert same(served, recorded)
    assert len(np.unique(recorded.segments_N)) > 1  # some stop early, so the lane really refills
    rollout = roll_out(onnx_engine(tmp_path, 4), SUDOKU, table(), asked, 4)
    whole = score_policy(rollout, LEARNED).total
    assert served.segments_N.mean() == pytest.approx(whole.mean_segments)
    assert served.exact_N.mean() == pytest.approx(whole.exact)


@pytest.mark.gpu
def test_puzzles_end_on_a_gpu_as_they_do_on_the_cpu(tmp_path: Path):
    if CUDA.name not in onnxruntime.get_available_providers():
        pytest.skip("ONNX Runtime has no CUDA here: pip install 'hrm-edge[serve-gpu]'")
    asked = questions(200)
    on_gpu = replace(SERVED, provider=CUDA)
    with SERVED.engine(SERVED.graph) as engine:
        on_cpu = SERVED.solve(engine, asked)
    assert same(SERVED.solve(onnx_engine(tmp_path, 3, CUDA), asked), on_cpu)
    recorded, _ = on_gpu.recorded(asked)
    assert same(recorded, on_cpu)


def test_puzzles_keep_their_order_and_their_labels():
    asked = questions(5)
    answers_NT = asked.labels_NT.copy()
    answers_NT[2, 0] = 1
    segments = [3, 1, 2, 4, 1]
    outcome = SERVED.solve(scripted(asked.tokens_NT, answers_NT, segments, 2), asked)
    assert outcome.segments_N.tolist() == segments
    assert outcome.exact_N.tolist() == [True, True, False, True, True]
    assert outcome.proven_N.tolist() == [True, True, False, True, True]


def test_each_segment_is_recorded_as_often_as_it_is_reached():
    outcomes, recorder = SERVED.recorded(questions(12))
    num_positions = 17 * int(outcomes.segments_N.sum())
    height_of = {tensor.name: tensor.dims[0] for tensor in GRAPH.graph.initializer if tensor.dims}
    for site in call_sites(GRAPH):
        num_values = num_positions * height_of[site.weight]
        assert recorder.histograms[site.name].counts.sum() == num_values


def test_what_is_recorded_is_what_the_linear_layer_reads():
    """One fresh puzzle: the first low layer reads the sum of state, input and high state."""
    seen = []

    def observe(arrays: Mapping[str, Any]) -> None:
        seen.append({name: rows.copy() for name, rows in arrays.items()})

    first = call_sites(GRAPH)[0]
    shown = with_outputs(GRAPH, [first.tensor])
    engine = recording_engine(session_of(shown, 1), 1, observe)
    engine.load(0, questions(1).tokens_NT[0], table()[0])
    engine.step(1)
    assert seen[0]["fresh_B"].all()
    expected = run(shown, seen[0])
    assert np.allclose(seen[0][first.tensor], expected[first.tensor], atol=1e-5)


def test_states_come_from_all_segments_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rollouts, "MAX_STATES", 7)
    policy = HaltingPolicy(kind="fixed", max_segments=4)
    _, recorder = replace(SERVED, policy=policy).recorded(questions(30))
    num_rows = {name: len(rows) for name, rows in recorder.states.items()}
    assert num_rows == dict.fromkeys(rollouts.INPUTS, 7)
    assert 0 < recorder.states["fresh_B"].sum() < 7


def test_less_memory_runs_fewer_puzzles_at_a_time(monkeypatch: pytest.MonkeyPatch):
    assert SERVED.num_slots == rollouts.MAX_SLOTS
    monkeypatch.setattr(rollouts, "MEMORY_BYTES", 1)
    assert SERVED.num_slots == 1


SEGMENTS = (1, 3, 2, 99, 2)
"""Segments after which the scripted model is sure of its answer to each puzzle."""


def played(num_slots: int = 2) -> Rollout:
    """Right after 1 segment, after 3, sure and wrong after 2, never done, right but for a cell."""
    asked = questions(5)
    asked.labels_NT[4, 0] = -100  # the first cell of the last does not matter
    answers_NT = asked.labels_NT.copy()
    answers_NT[4, 0] = 1
    answers_NT[2] = 1
    engine = scripted(asked.tokens_NT, answers_NT, SEGMENTS, num_slots)
    return roll_out(engine, SUDOKU, table(), asked, num_segments=4)


@pytest.mark.parametrize("num_slots", [1, 3, 8])
def test_every_puzzle_is_recorded_after_every_segment(num_slots: int):
    rollout = played(num_slots)
    assert rollout.exact_SN.T.tolist() == [
        [True, True, True, True],
        [False, False, True, True],
        [False, False, False, False],
        [False, False, False, False],
        [False, True, True, True],
    ]
    num_sure_N = (rollout.margin_SN > 0).sum(axis=0)
    num_proven_N = (rollout.verdict_SN == RIGHT).sum(axis=0)
    assert num_sure_N.tolist() == [4, 2, 3, 0, 3]
    assert num_proven_N.tolist() == [4, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "segments"), [("learned", [1, 3, 2, 4, 2]), ("verified", [1, 3, 4, 4, 4])]
)
def test_a_score_counts_the_segments_run(kind: PolicyKind, segments: list[int]):
    policy = HaltingPolicy(kind=kind, max_segments=4)
    score = score_policy(played(), policy).total
    assert score.mean_segments == sum(segments) / 5
    assert score.exact == 3 / 5
    assert score.proven == 2 / 5


def three_puzzles() -> Rollout:
    """The second is sure (margin 1) before it is right, and surer (3) once it is."""
    margin_NS = np.array([[2, 4, 5], [1, 1, 3], [-1, 2, 2]], np.float32)
    exact_NS = np.array([[True, True, True], [False, False, True], [False, True, True]])
    verdict_SN = np.full((3, 3), UNKNOWN, np.int8)
    asked = questions(3)
    return Rollout(
        questions=asked,
        margin_SN=margin_NS.T,
        verdict_SN=verdict_SN,
        exact_SN=exact_NS.T,
        answers_NT=asked.labels_NT,
        q_halt_N=margin_NS[:, -1],
    )


def test_the_curve_has_a_point_for_every_margin():
    points = {}
    for point in learned_curve(three_puzzles()):
        score = point.total
        points[point.policy.threshold] = (score.mean_segments, score.exact)
    assert points == {
        -1.0: (4 / 3, 2 / 3),
        0.0: (4 / 3, 2 / 3),
        1.0: (6 / 3, 1.0),
        2.0: (8 / 3, 1.0),
        3.0: (8 / 3, 1.0),
        4.0: (3.0, 1.0),
        5.0: (3.0, 1.0),
    }


@pytest.mark.parametrize(("max_loss", "threshold"), [(0.005, 1.0), (0.34, -1.0)])
def test_the_cheapest_threshold_is_chosen(max_loss: float, threshold: float):
    chosen = choose(learned_curve(three_puzzles()), max_loss)
    assert chosen.policy.threshold == threshold
