"""Parity: engines in lockstep, the first fault by name, and the report of hrm-parity."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_tools import restate
from cli_tools import invoked, json_of, rejected, succeeded
from scripted_engine import ScriptedEngine

from hrm_edge_runtime.contract.bundle import Bundle, Golden
from hrm_edge_runtime.contract.halting import PolicyKind
from hrm_edge_runtime.engines.engine import StepOutput
from hrm_edge_runtime.engines.onnx import OnnxEngine, engine_from_bundle
from hrm_parity.cli import main as app
from hrm_parity.outcomes import Outcomes
from hrm_parity.report import GATES, GOLDEN_FP32, ParityReport, breaks, not_judged, undecided
from hrm_parity.walk import Side, compare, walk
from hrm_puzzles import registry
from hrm_puzzles.data import datasets
from hrm_puzzles.data.sources import Questions, questions_made

SUDOKU = registry.get("sudoku-4x4")


def passed(bundle: Path, *arguments: object) -> str:
    return succeeded(app, bundle, "--threads=1", *arguments).output


@pytest.fixture
def two_precisions(copied: Path) -> Path:
    """The same graph under another precision's name."""
    shutil.copy(copied / "step.fp32.onnx", copied / "step.fp16.onnx")
    restate(copied, precisions={"fp32": "step.fp32.onnx", "fp16": "step.fp16.onnx"})
    return copied


def test_an_honest_bundle_passes(tiny_bundle: Path):
    output = passed(tiny_bundle)
    assert "passed: every gate holds" in output
    assert "5 puzzles (golden traces)" in output


def test_a_turned_puzzle_table_is_an_exit_code_of_1_in_segment_1(copied: Path):
    table = np.load(copied / "puzzle_table.npy")
    np.save(copied / "puzzle_table.npy", np.roll(table, 1, axis=0))
    restate(copied)  # a faulty export: the hashes fit
    ended = invoked(app, copied, "--threads=1")
    assert ended.exit_code == 1
    assert "first break: worst logit_gap in segment 1, puzzle" in ended.output


def test_few_fresh_puzzles_are_compared_and_told(two_precisions: Path):
    output = passed(two_precisions, "--engine", "cpu:fp16", "--puzzles", 6)
    assert "passed: every gate holds, but 6 puzzles cannot tell exact_loss" in output
    assert "6 puzzles (fresh, mixed, seed 1)" in output


def test_a_data_set_is_compared(two_precisions: Path, tmp_path: Path):
    inputs_NT = np.random.default_rng(0).integers(1, 6, (1200, 16), dtype=np.int32)
    datasets.write_split(tmp_path / "data", "test", inputs_NT, inputs_NT, puzzle=SUDOKU)
    options = ["--engine", "cpu:fp16", "--data", tmp_path / "data", "--puzzles", 1200]
    found = json_of(app, two_precisions, *options, "--threads=1")
    assert (found["passed"], found["puzzles"]) == (True, "test split of data")
    assert (found["candidate"], found["reference"]) == ("cpu:fp16", "cpu:fp32")
    assert found["num_puzzles"] == 1200
    assert "exact_loss" not in found["undecided"]


@pytest.mark.parametrize("arguments", [["--puzzles", "4"], ["--against", "cpu"]])
def test_an_engine_is_not_compared_with_itself(tiny_bundle: Path, arguments: list[str]):
    sentence = rejected(app, tiny_bundle, "--engine", "cpu", *arguments)
    assert "compared with itself" in sentence
    assert sentence.startswith("hrm-parity: ")


MAX_SEGMENTS = 6


class Begun:
    """An engine that forgets the carry before its `at`-th segment of puzzles that end together."""

    def __init__(self, inner: OnnxEngine, at: int) -> None:
        self.inner = inner
        self.at = at
        self.loaded = {}
        self.num_steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def load(self, slot: int, *puzzle: np.ndarray) -> None:
        self.loaded[slot] = puzzle
        self.inner.load(slot, *puzzle)

    def step(self, num_active: int) -> StepOutput:
        self.num_steps += 1
        if self.num_steps % MAX_SEGMENTS == self.at:
            for slot in range(num_active):
                self.inner.load(slot, *self.loaded[slot])
        return self.inner.step(num_active)


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return Bundle.open(tiny_bundle)


def engine_of(bundle: Bundle, num_slots: int = 3) -> OnnxEngine:
    return engine_from_bundle(bundle, num_slots=num_slots, num_threads=1, want_logits=True)


def side(bundle: Bundle, engine: OnnxEngine | Begun | None = None, num_slots: int = 3) -> Side:
    return Side(
        name="engine",
        engine=engine or engine_of(bundle, num_slots),
        puzzle_table=bundle.puzzle_table,
        policy=bundle.manifest.halting_policy(),
    )


def report_on(
    reference: Side,
    candidate: Side,
    questions: Questions,
    bundle: Bundle,
    *,
    to_the_end: bool = True,
) -> ParityReport:
    return walk(
        reference,
        candidate,
        questions,
        bundle.puzzle,
        num_segments=MAX_SEGMENTS,
        to_the_end=to_the_end,
    )


def compared(
    bundle: Bundle,
    golden: Golden | None = None,
    *,
    engine: Any = None,
    kind: PolicyKind = "verified",
) -> ParityReport:
    """The report on an engine beside golden traces, by default both are the bundle's."""
    return compare(
        golden or bundle.golden(),
        engine or engine_of(bundle),
        puzzle_table=bundle.puzzle_table,
        puzzle=bundle.puzzle,
        policy=replace(bundle.manifest.halting_policy(), kind=kind),
    )


def test_the_report_does_not_depend_on_the_number_of_slots(bundle: Bundle):
    questions = questions_made(bundle.puzzle, 7, seed=3)
    reports = []
    for num_slots in (1, 2, 7):
        honest = side(bundle, num_slots=num_slots)
        faulty = side(bundle, Begun(engine_of(bundle, num_slots), at=2))
        reports.append(report_on(honest, faulty, questions, bundle))
    first, *others = reports
    for other in others:
        gaps = other.columns["logit_gap"]
        assert np.allclose(gaps.worst_S, first.columns["logit_gap"].worst_S, atol=1e-6)
        assert other.num_running_S.tolist() == [7] * MAX_SEGMENTS
        assert other.as_json()["candidate_halts"] == first.as_json()["candidate_halts"]


def test_fresh_puzzles_run_until_both_sides_have_halted(bundle: Bundle):
    learned = replace(bundle.manifest.halting_policy(), kind="learned")
    early = replace(side(bundle), policy=learned)
    late = replace(side(bundle), policy=replace(learned, threshold=2.0))
    report = report_on(early, late, questions_made(bundle.puzzle, 20), bundle, to_the_end=False)
    num_halted_S = np.cumsum(report.as_json()["candidate_halts"])  # the later of the two
    assert report.num_running_S.tolist() == [20, *(20 - num_halted_S[:-1])]
    assert report.num_different_halts > 0


@pytest.mark.parametrize("segment", [2, 4])
def test_a_carry_begun_anew_is_named_by_its_segment(bundle: Bundle, segment: int):
    report = compared(bundle, engine=Begun(engine_of(bundle), at=segment))
    first = breaks(report, GOLDEN_FP32)[0]
    assert first.segment == segment


@pytest.mark.parametrize(
    ("num_puzzles", "lost", "is_broken"),
    [(100, 3, False), (100, 20, True), (2000, 9, False), (2000, 11, True)],
)
def test_sure_loss_breaks_gate(bundle: Bundle, num_puzzles: int, lost: int, is_broken: bool):
    honest = compared(bundle)
    all_N = np.ones(num_puzzles, np.bool_)
    theirs = Outcomes(exact_N=all_N, proven_N=all_N, segments_N=all_N.astype(np.int32))
    ours = theirs._replace(exact_N=np.arange(num_puzzles) >= lost)
    report = honest._replace(theirs=theirs, ours=ours)
    end = {**GOLDEN_FP32.end, "exact_loss": 0.5}
    found = breaks(report, GOLDEN_FP32.model_copy(update={"end": end}))
    points = 100 * lost / num_puzzles
    expected = [f"points of exact_loss at the end: {points:.4g} where 0.5 is allowed"]
    assert [str(one) for one in found] == (expected if is_broken else [])


@pytest.mark.parametrize(
    ("name", "index", "by", "num_different_halts"),
    [
        ("logits_SBTV", (3, 1, 4, 2), 0.5, 0),
        ("logits_SBTV", (1, 1, 1, 1), np.nan, 0),
        ("answer_SBT", (2, 0, 0), 1, 0),
        ("halt_margin_SB", (0, 2), 100.0, 1),  # in truth this puzzle goes on after segment 1
        ("q_halt_SB", (1, 1), 0.01, 0),  # a halting value may cancel out of the margin
    ],
)
def test_one_changed_value_breaks_a_gate_in_its_segment_alone(
    bundle: Bundle, name: str, index: tuple[int, ...], by: float, num_different_halts: int
):
    golden = bundle.golden()
    array = getattr(golden, name).copy()
    array[index] += by
    report = compared(bundle, replace(golden, **{name: array}), kind="learned")
    assert report.num_different_halts == num_different_halts
    assert {one.segment for one in breaks(report)} - {None} == {index[0] + 1}


@pytest.mark.parametrize(("num_changed", "is_broken"), [(3, False), (5, True)])
def test_most_answers_may_not_differ(bundle: Bundle, num_changed: int, is_broken: bool):
    """Of five puzzles that neither side solves, some differ in their last segment alone.

    Three of five may be chance, which the verdict says.
    """
    golden = bundle.golden()
    golden.answer_SBT[-1, :num_changed, 0] += 1
    found = compared(bundle, golden, kind="fixed")
    assert found.exact.num_lost == 0
    assert found.num_different_halts == 0
    broken = ["share of different_final_answers at the end: 1 where 0.5 is allowed"]
    expected = broken if is_broken else []
    for precision, kind in itertools.product(("fp16", "int8"), ("golden", "live")):
        gates = GATES[precision][kind]
        assert [str(one) for one in breaks(found, gates)] == expected
        assert ("different_final_answers" in undecided(found, gates)) is not is_broken


def test_a_measure_without_values_is_named(bundle: Bundle):
    report = compared(bundle)  # golden traces hold no carry
    assert not_judged(report, GATES["fp16"]["live"]) == ["carry_drift"]


def test_no_puzzle_and_no_logits_are_no_comparison(bundle: Bundle):
    nothing = questions_made(bundle.puzzle, 1).at(np.arange(0))
    with pytest.raises(ValueError, match="no puzzle"):
        report_on(side(bundle), side(bundle), nothing, bundle)
    with pytest.raises(ValueError, match="want_logits"):
        compared(bundle, engine=ScriptedEngine(num_slots=3, seq_len=16))
