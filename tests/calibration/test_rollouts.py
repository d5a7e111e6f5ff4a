"""Calibration records what serving computes: the same answers, every segment that is reached."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from calibration_tools import SUDOKU, questions, run, small_graph, table

from hrm_calibration import rollouts
from hrm_calibration.halting_curve import Outcomes, roll_out, score_policy
from hrm_calibration.quantize import call_sites, with_outputs
from hrm_calibration.rollouts import Recorder, RecordingEngine, ServedGraph, session_of
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.factory import num_gpus
from hrm_edge_runtime.engines.onnx import CPU, CUDA, OnnxEngine, Provider
from hrm_edge_runtime.engines.scripted import Script, ScriptedEngine

GRAPH = small_graph()
LEARNED = HaltingPolicy(kind="learned", max_segments=4)
SERVED = ServedGraph(graph=GRAPH, puzzle=SUDOKU, puzzle_table=table(), policy=LEARNED)


def onnx_engine(path: Path, num_slots: int, provider: Provider = CPU) -> OnnxEngine:
    file = path / "step.onnx"
    file.write_bytes(GRAPH.SerializeToString())
    return OnnxEngine(file, num_slots=num_slots, num_threads=1, provider=provider)


def same(one: Outcomes, other: Outcomes) -> bool:
    return all(np.array_equal(values_N, vars(other)[name]) for name, values_N in vars(one).items())


def test_the_recording_engine_answers_like_the_engine_that_serves(tmp_path: Path) -> None:
    asked = questions(20)
    served = SERVED.solve(onnx_engine(tmp_path, 3), asked)
    recorded = SERVED.observed(asked, Recorder(GRAPH).observe)
    assert same(served, recorded)
    assert len(np.unique(recorded.segments_N)) > 1  # some stop early, so the lane really refills


@pytest.mark.gpu
@pytest.mark.skipif(num_gpus() == 0, reason="no CUDA device on this machine")
def test_puzzles_end_on_a_gpu_as_they_do_on_the_cpu(tmp_path: Path) -> None:
    if CUDA.name not in onnxruntime.get_available_providers():
        pytest.skip("ONNX Runtime has no CUDA here: pip install 'hrm-edge[serve-gpu]'")
    asked = questions(200)
    on_gpu = replace(SERVED, provider=CUDA)
    on_cpu = SERVED.outcomes(asked)
    assert same(SERVED.solve(onnx_engine(tmp_path, 3, CUDA), asked), on_cpu)
    assert same(on_gpu.observed(asked, Recorder(GRAPH).observe), on_cpu)


def test_solving_in_the_lane_is_the_policy_applied_to_whole_rollouts(tmp_path: Path) -> None:
    asked = questions(20)
    rollout = roll_out(onnx_engine(tmp_path, 4), SUDOKU, table(), asked, 4)
    whole = score_policy(rollout, LEARNED).total
    lane = SERVED.solve(onnx_engine(tmp_path, 3), asked)
    assert lane.segments_N.mean() == pytest.approx(whole.mean_segments)
    assert lane.exact_N.mean() == pytest.approx(whole.exact)


def test_puzzles_keep_their_order_and_their_labels() -> None:
    asked = questions(5)
    answers_NT = asked.labels_NT.copy()
    answers_NT[2, 0] = 1
    segments = [3, 1, 2, 4, 1]
    scripts: dict[bytes, Script] = {}
    for index, count in enumerate(segments):
        key = asked.tokens_NT[index].tobytes()
        scripts[key] = Script(answer_T=answers_NT[index], segments=count)

    def play(tokens_T: np.ndarray) -> Script:
        return scripts[tokens_T.tobytes()]

    outcome = SERVED.solve(ScriptedEngine(num_slots=2, seq_len=16, play=play), asked)
    assert outcome.segments_N.tolist() == segments
    assert outcome.exact_N.tolist() == [True, True, False, True, True]
    assert outcome.proven_N.tolist() == [True, True, False, True, True]


def test_each_segment_is_recorded_as_often_as_it_is_reached() -> None:
    recorder = Recorder(GRAPH)
    outcomes = SERVED.observed(questions(12), recorder.observe)
    num_positions = 17 * int(outcomes.segments_N.sum())
    height_of = {tensor.name: tensor.dims[0] for tensor in GRAPH.graph.initializer if tensor.dims}
    for site in call_sites(GRAPH):
        num_values = num_positions * height_of[site.weight]
        assert recorder.histograms[site.name].counts.sum() == num_values


def test_what_is_recorded_is_what_the_linear_layer_reads() -> None:
    """One fresh puzzle: the first low layer reads the sum of state, input and high state."""
    seen: list[dict[str, np.ndarray]] = []

    def observe(arrays: Mapping[str, Any]) -> None:
        seen.append({name: rows.copy() for name, rows in arrays.items()})

    first = call_sites(GRAPH)[0]
    shown = with_outputs(GRAPH, [first.tensor])
    engine = RecordingEngine(session_of(shown, 1), 1, observe)
    engine.load(0, questions(1).tokens_NT[0], table()[0])
    engine.step(1)
    assert seen[0]["fresh_B"].all()
    expected = run(shown, seen[0])
    assert np.allclose(seen[0][first.tensor], expected[first.tensor], atol=1e-5)


def test_states_are_drawn_from_all_segments_and_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollouts, "MAX_STATES", 7)
    policy = HaltingPolicy(kind="fixed", max_segments=4)
    recorder = Recorder(GRAPH)
    replace(SERVED, policy=policy).observed(questions(30), recorder.observe)
    num_rows = {name: len(rows) for name, rows in recorder.states.items()}
    assert num_rows == dict.fromkeys(rollouts.INPUTS, 7)
    assert 0 < recorder.states["fresh_B"].sum() < 7


def test_less_memory_runs_fewer_puzzles_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SERVED.num_slots == rollouts.MAX_SLOTS
    monkeypatch.setattr(rollouts, "MEMORY_BYTES", 1)
    assert SERVED.num_slots == 1
