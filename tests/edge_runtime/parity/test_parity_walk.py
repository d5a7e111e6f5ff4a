"""Two engines in lockstep: an honest pair passes, and each fault is found and named."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.engine import StepOutput
from hrm_edge_runtime.engines.onnx import OnnxEngine, engine_from_bundle
from hrm_edge_runtime.engines.scripted import ScriptedEngine
from hrm_edge_runtime.parity.comparison import reasons_of
from hrm_edge_runtime.parity.measures import SolveCounts
from hrm_edge_runtime.parity.options import DEFAULT_FILE
from hrm_edge_runtime.parity.report import GOLDEN_FP32, ParityReport, breaks, read_gates
from hrm_edge_runtime.parity.walk import Side, compare, golden_questions, golden_side, walk
from hrm_puzzles.data.sources import Questions, questions_made

MAX_SEGMENTS = 6


class Begun:
    """An engine that forgets the carry before its `at`-th segment of every puzzle."""

    def __init__(self, inner: OnnxEngine, at: int) -> None:
        self.inner = inner
        self.at = at
        self.num_slots = inner.num_slots
        self.seq_len = inner.seq_len
        self.close = inner.close
        self.loaded: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.segments = [0] * inner.num_slots

    def load(self, slot: int, tokens_T: np.ndarray, puzzle_vector_E: np.ndarray) -> None:
        self.loaded[slot] = (tokens_T, puzzle_vector_E)
        self.segments[slot] = 0
        self.inner.load(slot, tokens_T, puzzle_vector_E)

    def move(self, source: int, target: int) -> None:
        self.loaded[target] = self.loaded[source]
        self.segments[target] = self.segments[source]
        self.inner.move(source, target)

    def step(self, num_active: int) -> StepOutput:
        for slot in range(num_active):
            self.segments[slot] += 1
            if self.segments[slot] == self.at:
                self.inner.load(slot, *self.loaded[slot])
        return self.inner.step(num_active)

    def read_carry(self, num_active: int) -> tuple[np.ndarray, np.ndarray]:
        return self.inner.read_carry(num_active)


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


def golden_of(bundle: Bundle, num_slots: int = 3) -> Side:
    return golden_side(bundle.golden(), num_slots, bundle.manifest.halting_policy())


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


def golden_report(bundle: Bundle, candidate: Side) -> ParityReport:
    return report_on(golden_of(bundle), candidate, golden_questions(bundle.golden()), bundle)


def fresh(bundle: Bundle, num_puzzles: int, seed: int = 0) -> Questions:
    return questions_made(bundle.puzzle, num_puzzles, seed=seed)


def test_the_report_does_not_depend_on_the_number_of_slots(bundle: Bundle) -> None:
    questions = fresh(bundle, 7, seed=3)
    reports: list[ParityReport] = []
    for num_slots in (1, 2, 7):
        honest = side(bundle, num_slots=num_slots)
        faulty = side(bundle, Begun(engine_of(bundle, num_slots), at=2))
        reports.append(report_on(honest, faulty, questions, bundle))
    first, *others = reports
    for other in others:
        gaps = other.columns["logit_gap"]
        assert np.allclose(gaps.worst_S, first.columns["logit_gap"].worst_S, atol=1e-6)
        assert np.array_equal(gaps.count_S, [7] * MAX_SEGMENTS)
        assert np.array_equal(other.candidate_halts_S, first.candidate_halts_S)


def test_fresh_puzzles_run_until_both_sides_have_halted(bundle: Bundle) -> None:
    learned = replace(bundle.manifest.halting_policy(), kind="learned")
    early = replace(side(bundle), policy=learned)
    late = replace(side(bundle), policy=replace(learned, threshold=2.0))
    report = report_on(early, late, fresh(bundle, 20), bundle, to_the_end=False)
    num_halted_S = np.cumsum(report.candidate_halts_S)  # the later of the two
    running = report.columns["logit_gap"].count_S
    assert running.tolist() == [20, *(20 - num_halted_S[:-1])]
    assert report.num_different_halts > 0


def test_the_engine_a_trace_came_from_passes(bundle: Bundle) -> None:
    report = golden_report(bundle, side(bundle))
    assert not breaks(report)
    assert report.max_logit_gap == 0.0
    assert report.num_puzzles == 5
    assert report.num_segments == bundle.manifest.max_segments
    assert "carry_drift" not in report.columns  # traces hold no carry


@pytest.mark.parametrize("segment", [2, 4])
def test_a_carry_begun_anew_is_named_by_its_segment(bundle: Bundle, segment: int) -> None:
    candidate = side(bundle, Begun(engine_of(bundle), at=segment))
    first = breaks(golden_report(bundle, candidate), GOLDEN_FP32)[0]
    assert first.segment == segment
    questions = golden_questions(bundle.golden())
    (reason,) = reasons_of(first, golden_of(bundle), candidate, questions, bundle)
    assert f"in segment {segment} the candidate says again what it said in segment 1" in reason


def paired(num_puzzles: int, lost: int, won: int) -> SolveCounts:
    return SolveCounts(
        num_puzzles=num_puzzles,
        reference=num_puzzles - won,
        candidate=num_puzzles - lost,
        lost=lost,
        won=won,
    )


def test_a_loss_is_counted_in_pairs_and_its_interval_narrows_with_their_number() -> None:
    assert paired(100, 7, 2).loss_points == 5.0
    low, high = paired(100, 0, 0).interval_points
    assert low == -high < 0
    widths: list[float] = []
    for count in (100, 1000, 10000):
        low, high = paired(count, count // 20, count // 50).interval_points
        widths.append(high - low)
    assert widths[0] > 3 * widths[1] > 9 * widths[2]


@pytest.mark.parametrize(
    ("num_puzzles", "lost", "is_broken"),
    [(100, 3, False), (100, 20, True), (2000, 9, False), (2000, 11, True)],
)
def test_a_loss_breaks_its_gate_once_it_is_certain_or_measured_on_enough(
    bundle: Bundle, num_puzzles: int, lost: int, is_broken: bool
) -> None:
    honest = golden_report(bundle, side(bundle))
    report = replace(honest, exact=paired(num_puzzles, lost, 0))
    end = GOLDEN_FP32.end.model_copy(update={"exact_loss": 0.5})
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
) -> None:
    golden = bundle.golden()
    array = getattr(golden, name).copy()
    array[index] += by
    report = compare(
        replace(golden, **{name: array}),
        engine_of(bundle, 8),
        puzzle_table=bundle.puzzle_table,
        puzzle=bundle.puzzle,
        policy=replace(bundle.manifest.halting_policy(), kind="learned"),
    )
    assert report.num_different_halts == num_different_halts
    assert {one.segment for one in breaks(report)} - {None} == {index[0] + 1}


@pytest.mark.parametrize(("num_changed", "is_broken"), [(2, False), (3, True)])
def test_if_most_answers_differ_no_gate_holds_though_nothing_is_lost(
    bundle: Bundle, num_changed: int, is_broken: bool
) -> None:
    """Of five puzzles that neither side solves, some differ in their last segment alone."""
    golden = bundle.golden()
    golden.answer_SBT[-1, :num_changed, 0] += 1
    found = compare(
        golden,
        engine_of(bundle, 5),
        puzzle_table=bundle.puzzle_table,
        puzzle=bundle.puzzle,
        policy=replace(bundle.manifest.halting_policy(), kind="fixed"),
    )
    assert found.exact.lost == 0
    assert found.num_different_halts == 0
    broken = ["share of different_final_answers at the end: 0.6 where 0.5 is allowed"]
    expected = broken if is_broken else []
    for precision, kind in itertools.product(("fp16", "int8"), ("golden", "live")):
        gates = read_gates(DEFAULT_FILE, precision, kind)
        assert [str(one) for one in breaks(found, gates)] == expected


def test_no_puzzle_and_no_logits_are_no_comparison(bundle: Bundle) -> None:
    questions = golden_questions(bundle.golden())
    with pytest.raises(ValueError, match="no puzzle"):
        report_on(side(bundle), side(bundle), questions.at(np.arange(0)), bundle)
    silent = replace(side(bundle), engine=ScriptedEngine(num_slots=3, seq_len=16))
    with pytest.raises(ValueError, match="want_logits"):
        report_on(golden_of(bundle), silent, questions, bundle)
