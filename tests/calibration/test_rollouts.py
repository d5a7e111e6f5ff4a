"""Calibration records what serving computes: the same answers, every segment that is reached."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from calibration_tools import SUDOKU, questions, run, small_graph, table

from hrm_calibration import rollouts
from hrm_calibration.halting_curve import Outcomes, roll_out, score_policy
from hrm_calibration.quantise import call_sites, with_outputs
from hrm_calibration.rollouts import Recorder, RecordingEngine, ServedGraph, session_of, slots_for
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
    assert (
        len(set(recorded.segments_N.tolist())) > 1
    )  # some stop early, so that the lane really refills


@pytest.mark.gpu
@pytest.mark.skipif(num_gpus() == 0, reason="no CUDA device on this machine")
def test_puzzles_end_on_a_gpu_as_they_do_where_they_were_calibrated(tmp_path: Path) -> None:
    if CUDA.name not in onnxruntime.get_available_providers():
        pytest.skip("ONNX Runtime has no CUDA here: pip install 'hrm-edge[serve-gpu]'")
    asked = questions(200)
    there = replace(SERVED, provider=CUDA)
    assert same(SERVED.solve(onnx_engine(tmp_path, 3, CUDA), asked), SERVED.outcomes(asked))
    assert same(there.observed(asked, Recorder(GRAPH).observe), SERVED.outcomes(asked))


def test_solving_in_the_lane_is_the_policy_applied_to_whole_rollouts(tmp_path: Path) -> None:
    asked = questions(20)
    whole = score_policy(
        roll_out(onnx_engine(tmp_path, 4), SUDOKU, table(), asked, 4), LEARNED
    ).total
    lane = SERVED.solve(onnx_engine(tmp_path, 3), asked)
    assert lane.segments_N.mean() == pytest.approx(whole.mean_segments)
    assert lane.exact_N.mean() == pytest.approx(whole.exact)


def test_puzzles_keep_their_order_and_their_labels() -> None:
    asked = questions(5)
    answers = asked.labels_NT.copy()
    answers[2, 0] = 1
    scripts = {
        tokens_T.tobytes(): Script(answer_T=answer_T, segments=count)
        for tokens_T, answer_T, count in zip(asked.tokens_NT, answers, (3, 1, 2, 4, 1), strict=True)
    }
    engine = ScriptedEngine(
        num_slots=2, seq_len=16, play=lambda tokens_T: scripts[tokens_T.tobytes()]
    )
    outcome = SERVED.solve(engine, asked)
    assert outcome.segments_N.tolist() == [3, 1, 2, 4, 1]
    assert outcome.exact_N.tolist() == [True, True, False, True, True]
    assert outcome.proven_N.tolist() == [True, True, False, True, True]


def test_each_segment_is_recorded_as_often_as_it_is_reached() -> None:
    recorder = Recorder(GRAPH)
    num_rows = int(SERVED.observed(questions(12), recorder.observe).segments_N.sum())
    counted = {name: int(histogram.counts.sum()) for name, histogram in recorder.histograms.items()}
    assert counted == {
        site.name: num_rows * 17 * len(weight_of(site.name)) for site in call_sites(GRAPH)
    }


def weight_of(site: str) -> np.ndarray:
    weight = next(each.weight for each in call_sites(GRAPH) if each.name == site)
    return onnx.numpy_helper.to_array(next(t for t in GRAPH.graph.initializer if t.name == weight))


def test_what_is_recorded_is_what_the_linear_layer_reads() -> None:
    """One fresh puzzle: the first low layer reads the sum of state, input and high state."""
    seen: list[Mapping[str, Any]] = []

    def observe(arrays: Mapping[str, Any]) -> None:
        seen.append({name: rows.copy() for name, rows in arrays.items()})

    first = call_sites(GRAPH)[0]
    shown = with_outputs(GRAPH, [first.tensor])
    engine = RecordingEngine(session_of(shown, 1), 1, observe)
    engine.load(0, questions(1).tokens_NT[0], table()[0])
    engine.step(1)
    inputs = {name: seen[0][name] for name in rollouts.INPUTS}
    assert inputs["fresh_B"].all()
    assert np.allclose(seen[0][first.tensor], run(shown, inputs)[first.tensor], atol=1e-5)


def test_states_are_drawn_from_all_segments_and_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollouts, "MAX_STATES", 7)
    fixed, recorder = (
        replace(SERVED, policy=HaltingPolicy(kind="fixed", max_segments=4)),
        Recorder(GRAPH),
    )
    fixed.observed(questions(30), recorder.observe)
    states = recorder.states
    assert {name: len(rows) for name, rows in states.items()} == dict.fromkeys(rollouts.INPUTS, 7)
    assert 0 < states["fresh_B"].sum() < 7


def test_long_sequences_run_few_puzzles_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slots_for(GRAPH) == rollouts.MAX_SLOTS
    row_bytes = 8 * 17 * sum(len(weight_of(site.name)) for site in call_sites(GRAPH))
    monkeypatch.setattr(rollouts, "MEMORY_BYTES", 3 * row_bytes)
    assert slots_for(GRAPH) == 3
    monkeypatch.setattr(rollouts, "MEMORY_BYTES", 1)
    assert slots_for(GRAPH) == 1


CALIBRATE_LONG = """
import resource, sys
import numpy as np, onnx
from hrm_calibration.int8 import Int8Settings, calibrate
from hrm_calibration.rollouts import ServedGraph
from hrm_puzzles.data.sources import questions_made
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_puzzles import registry
puzzle = registry.get("maze")
served = ServedGraph(
    graph=onnx.load(sys.argv[1]), puzzle=puzzle, puzzle_table=np.ones((1, 256), np.float32),
    policy=HaltingPolicy(kind="verified", max_segments=2),
)
settings = Int8Settings(methods=("min-max", "entropy", "mse"))
calibrate(served, questions_made(puzzle, 8), settings=settings)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute of processor time
def test_nine_hundred_tokens_take_less_than_two_gigabytes(tmp_path: Path) -> None:
    sizes = {
        "vocab_size": 6,
        "seq_len": 900,
        "hidden_size": 256,
        "num_heads": 4,
        "puzzle_vector_size": 256,
    }
    (tmp_path / "step.onnx").write_bytes(small_graph(**sizes).SerializeToString())
    ended = subprocess.run(
        [sys.executable, "-c", CALIBRATE_LONG, str(tmp_path / "step.onnx")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ended.stdout.split()[-1]) < 2 << 30
