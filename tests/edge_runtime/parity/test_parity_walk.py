"""Two engines side by side: what an honest pair and each faulty one look like, and where the fault is named."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_edge_runtime.engines.scripted import ScriptedEngine
from hrm_edge_runtime.parity.comparison import reasons_of
from hrm_edge_runtime.parity.measures import Column, SolveCounts
from hrm_edge_runtime.parity.options import DEFAULT_FILE
from hrm_edge_runtime.parity.report import (
    GOLDEN_FP32,
    Break,
    ParityReport,
    breaks,
    read_gates,
)
from hrm_edge_runtime.parity.walk import Side, compare, golden_questions, golden_side, walk
from hrm_puzzles.data.sources import Questions, questions_made

MAX_SEGMENTS = 6


class Begun:
    """An engine that forgets the carry before its `at`-th segment of every puzzle."""

    def __init__(self, inner: Engine, at: int) -> None:
        self.inner, self.at = inner, at
        self.num_slots, self.seq_len = inner.num_slots, inner.seq_len
        self.loaded: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.segments = dict.fromkeys(range(inner.num_slots), 0)

    def load(self, slot: int, tokens_T: np.ndarray, puzzle_vector_E: np.ndarray) -> None:
        self.loaded[slot], self.segments[slot] = (tokens_T, puzzle_vector_E), 0
        self.inner.load(slot, tokens_T, puzzle_vector_E)

    def move(self, source: int, target: int) -> None:
        self.loaded[target], self.segments[target] = self.loaded[source], self.segments[source]
        self.inner.move(source, target)

    def step(self, num_active: int) -> StepOutput:
        for slot in range(num_active):
            self.segments[slot] += 1
            if self.segments[slot] == self.at:
                self.inner.load(slot, *self.loaded[slot])
        return self.inner.step(num_active)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def bundle(tiny_bundle: Path) -> Bundle:
    return Bundle.open(tiny_bundle)


def side(bundle: Bundle, num_slots: int = 3, name: str = "engine") -> Side:
    engine = engine_from_bundle(bundle, num_slots=num_slots, num_threads=1, want_logits=True)
    return Side(
        name=name,
        engine=engine,
        puzzle_table=bundle.puzzle_table,
        policy=bundle.manifest.halting_policy(),
    )


def golden_of(bundle: Bundle, num_slots: int = 3) -> Side:
    return golden_side(bundle.golden(), num_slots, bundle.manifest.halting_policy())


def report_on(
    reference: Side, candidate: Side, questions: Questions, bundle: Bundle, *, to_the_end: bool
) -> ParityReport:
    return walk(
        reference,
        candidate,
        questions,
        bundle.puzzle,
        num_segments=MAX_SEGMENTS,
        to_the_end=to_the_end,
    )


def test_the_report_does_not_depend_on_the_number_of_slots(bundle: Bundle) -> None:
    source = questions_made(bundle.puzzle, 7, seed=3)
    reports = []
    for num_slots in (1, 2, 7):
        faulty = side(bundle, num_slots)
        faulty = replace(faulty, engine=Begun(faulty.engine, at=2))
        reports.append(report_on(side(bundle, num_slots), faulty, source, bundle, to_the_end=True))
    for other in reports[1:]:
        assert np.allclose(
            other.columns["logit_gap"].worst_S, reports[0].columns["logit_gap"].worst_S, atol=1e-6
        )
        assert np.array_equal(other.columns["logit_gap"].count_S, [7] * MAX_SEGMENTS)
        assert np.array_equal(other.candidate_halts_S, reports[0].candidate_halts_S)


def test_an_engine_beside_itself_differs_in_nothing(bundle: Bundle) -> None:
    report = report_on(
        side(bundle),
        side(bundle),
        questions_made(bundle.puzzle, 8, seed=0),
        bundle,
        to_the_end=False,
    )
    assert report.num_puzzles == 8
    assert (
        report.num_different_halts
        == report.columns["different_answers"].sum_S.sum()
        == report.max_logit_gap
        == 0
    )
    assert report.columns["carry_drift"].worst_S.max() == 0
    assert np.array_equal(report.reference_halts_S, report.candidate_halts_S)


def test_fresh_puzzles_run_until_both_sides_have_halted(bundle: Bundle) -> None:
    learned = replace(bundle.manifest.halting_policy(), kind="learned")
    early, late = (
        replace(side(bundle), policy=learned),
        replace(side(bundle), policy=replace(learned, threshold=2.0)),
    )
    source = questions_made(bundle.puzzle, 20, seed=0)
    report = report_on(early, late, source, bundle, to_the_end=False)
    halts = np.cumsum(report.candidate_halts_S)  # the later of the two
    running = report.columns["logit_gap"].count_S
    assert running.tolist() == [20, *(20 - halts[:-1]).tolist()]
    assert report.num_different_halts > 0


def test_the_golden_traces_stand_in_for_an_engine(bundle: Bundle) -> None:
    source = golden_questions(bundle.golden())
    report = report_on(golden_of(bundle, 2), side(bundle, 2), source, bundle, to_the_end=True)
    assert not breaks(report)
    assert "carry_drift" not in report.columns  # traces hold no carry


@pytest.mark.parametrize("segment", [2, 4])
def test_a_carry_begun_anew_is_named_by_its_segment(bundle: Bundle, segment: int) -> None:
    source, reference, candidate = (
        golden_questions(bundle.golden()),
        golden_of(bundle),
        side(bundle),
    )
    candidate = replace(candidate, engine=Begun(candidate.engine, at=segment))
    report = report_on(reference, candidate, source, bundle, to_the_end=True)
    first = breaks(report, GOLDEN_FP32)[0]
    assert first.segment == segment
    (reason,) = reasons_of(first, reference, candidate, source, bundle)
    assert f"in segment {segment} the candidate says again what it said in segment 1" in reason


def test_a_carry_begun_anew_shows_as_a_jump_of_its_drift(bundle: Bundle) -> None:
    faulty = Handing(side(bundle).engine, at=3)
    report = report_on(
        side(bundle),
        replace(side(bundle), engine=faulty),
        questions_made(bundle.puzzle, 5, seed=0),
        bundle,
        to_the_end=True,
    )
    assert report.columns["carry_drift"].worst_S[:2].max() == 0
    assert report.columns["carry_drift"].mean_S[2] > 0.1


class Handing(Begun):
    """The same, and its carry may be looked at."""

    def read_carry(self, num_active: int) -> tuple[np.ndarray, np.ndarray]:
        return self.inner.read_carry(num_active)  # type: ignore[attr-defined]


def test_a_puzzle_vector_from_the_wrong_row_is_named_by_puzzle_and_row(bundle: Bundle) -> None:
    golden = bundle.golden()
    shifted = np.array(bundle.puzzle_table)
    shifted[[1, 2]] = shifted[[2, 1]]
    source, reference, candidate = golden_questions(golden), golden_of(bundle), side(bundle)
    candidate = replace(candidate, puzzle_table=shifted)
    report = report_on(reference, candidate, source, bundle, to_the_end=True)
    first = breaks(report, GOLDEN_FP32)[0]
    assert first.segment == 1
    assert first.puzzle_id == golden.puzzle_ids_B[first.puzzle]
    assert first.puzzle_id in (1, 2)
    (reason,) = reasons_of(first, reference, candidate, source, bundle)
    other = 3 - first.puzzle_id
    assert (
        f"given row {other} of the puzzle table (task-{other}) instead of row {first.puzzle_id}"
        in reason
    )


def test_a_fault_of_another_kind_is_blamed_on_neither(bundle: Bundle) -> None:
    source, reference = golden_questions(bundle.golden()), golden_of(bundle)
    candidate = replace(side(bundle), puzzle_table=np.array(bundle.puzzle_table) * 3)
    report = report_on(reference, candidate, source, bundle, to_the_end=True)
    first = breaks(report, GOLDEN_FP32)[0]
    assert first.segment == 1
    assert reasons_of(first, reference, candidate, source, bundle) == []


def test_the_worst_row_of_a_segment_is_kept_with_its_puzzle() -> None:
    column = Column(2)
    index_B, ids_B = np.array([0, 0, 1, 0]), np.zeros(4, np.int64)
    column.take(index_B, np.array([7, 8, 9, 10]), ids_B, np.array([2.0, 5.0, np.nan, 3.0]))
    column.take(index_B[:1], np.array([11]), ids_B[:1], np.array([4.0]))
    assert (column.worst_S[0], column.question_S[0], column.mean_S[0]) == (5.0, 8, 3.5)
    assert column.as_json()["worst"] == [5.0, None]


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
    widths = [
        np.ptp(paired(count, count // 20, count // 50).interval_points)
        for count in (100, 1000, 10000)
    ]
    assert widths[0] > 3 * widths[1] > 9 * widths[2]


@pytest.mark.parametrize(
    ("num_puzzles", "lost", "is_broken"),
    [(100, 3, False), (100, 20, True), (2000, 9, False), (2000, 11, True)],
)
def test_a_loss_breaks_its_gate_once_it_is_certain_or_measured_on_enough(
    bundle: Bundle, num_puzzles: int, lost: int, is_broken: bool
) -> None:
    report = report_on(
        side(bundle), side(bundle), golden_questions(bundle.golden()), bundle, to_the_end=True
    )
    report = replace(report, exact=paired(num_puzzles, lost, 0))
    gates = GOLDEN_FP32.model_copy(
        update={"end": GOLDEN_FP32.end.model_copy(update={"exact_loss": 0.5})}
    )
    expected = [
        f"points of exact_loss at the end: {100 * lost / num_puzzles:.4g} where 0.5 is allowed"
    ]
    assert [str(one) for one in breaks(report, gates)] == (expected if is_broken else [])


def test_a_break_says_gate_segment_puzzle_value_and_limit() -> None:
    told = str(
        Break(gate="worst logit_gap", value=0.25, limit=1e-4, segment=3, puzzle=5, puzzle_id=2)
    )
    assert (
        told
        == "worst logit_gap in segment 3, puzzle 5 (row 2 of the puzzle table): 0.25 where 0.0001 is allowed"
    )


def test_no_puzzle_is_no_comparison(bundle: Bundle) -> None:
    with pytest.raises(ValueError, match="no puzzle"):
        report_on(
            side(bundle),
            side(bundle),
            golden_questions(bundle.golden()).at(np.arange(0)),
            bundle,
            to_the_end=False,
        )


class Broken(Handing):
    """And its carry is not finite from there on."""

    def read_carry(self, num_active: int) -> tuple[np.ndarray, np.ndarray]:
        high_BND, low_BND = (rows.copy() for rows in super().read_carry(num_active))
        high_BND[[self.segments[slot] >= self.at for slot in range(num_active)]] = np.nan
        return high_BND, low_BND


def test_a_carry_that_is_not_finite_counts_as_infinitely_far(bundle: Bundle) -> None:
    candidate = replace(side(bundle), engine=Broken(side(bundle).engine, at=2))
    source = questions_made(bundle.puzzle, 4, seed=0)
    report = report_on(side(bundle), candidate, source, bundle, to_the_end=True)
    column = report.columns["carry_drift"]
    assert column.worst_S[1] == column.mean_S[1] == np.inf
    assert column.as_json()["worst"][1] == "inf"


def replayed(bundle: Bundle, name: str, index: tuple[int, ...], by: float) -> ParityReport:
    """The bundle's engine against its traces with one value of one array changed."""
    golden = bundle.golden()
    array = getattr(golden, name).copy()
    array[index] += by
    learned = replace(
        side(bundle, 8), policy=replace(bundle.manifest.halting_policy(), kind="learned")
    )
    changed = replace(golden, **{name: array})
    engine, table = learned.engine, learned.puzzle_table
    return compare(changed, engine, puzzle_table=table, puzzle=bundle.puzzle, policy=learned.policy)


def test_the_engine_a_trace_came_from_passes(bundle: Bundle) -> None:
    report = report_on(
        golden_of(bundle), side(bundle), golden_questions(bundle.golden()), bundle, to_the_end=True
    )
    assert not breaks(report)
    assert report.max_logit_gap == 0.0
    assert report.num_puzzles == 5
    assert report.num_segments == bundle.manifest.max_segments


def test_a_perturbed_logit_shows_in_its_segment_alone(bundle: Bundle) -> None:
    report = replayed(bundle, "logits_SBTV", (3, 1, 4, 2), 0.5)
    assert breaks(report)
    assert [gap > 1e-4 for gap in report.columns["logit_gap"].worst_S] == [
        False,
        False,
        False,
        True,
        False,
        False,
    ]


def test_a_changed_answer_is_counted(bundle: Bundle) -> None:
    report = replayed(bundle, "answer_SBT", (2, 0, 0), 1)
    assert report.columns["different_answers"].sum_S.sum() == 1
    assert breaks(report)


@pytest.mark.parametrize(("num_changed", "is_broken"), [(2, False), (3, True)])
def test_where_most_answers_differ_no_gate_holds_though_nothing_is_lost(
    bundle: Bundle, num_changed: int, is_broken: bool
) -> None:
    """Of five puzzles that neither side solves, changed in the last segment alone, as amplified rounding does it."""
    golden, policy = bundle.golden(), replace(bundle.manifest.halting_policy(), kind="fixed")
    golden.answer_SBT[-1, :num_changed, 0] += 1
    found = compare(
        golden,
        side(bundle, 5).engine,
        puzzle_table=bundle.puzzle_table,
        puzzle=bundle.puzzle,
        policy=policy,
    )
    assert (found.exact.lost, found.num_different_halts) == (0, 0)
    for precision, kind in itertools.product(("fp16", "int8"), ("golden", "live")):
        told = [str(one) for one in breaks(found, read_gates(DEFAULT_FILE, precision, kind))]
        assert told == (
            ["share of different_final_answers at the end: 0.6 where 0.5 is allowed"]
            if is_broken
            else []
        )


def test_a_margin_that_halts_a_puzzle_elsewhere_is_counted(bundle: Bundle) -> None:
    assert bundle.golden().halt_margin_SB[0, 2] < 0  # it goes on after the first segment in truth
    report = replayed(bundle, "halt_margin_SB", (0, 2), 100.0)
    assert report.num_different_halts == 1
    assert breaks(report)


def test_a_halting_value_that_cancels_out_of_the_margin_is_seen(bundle: Bundle) -> None:
    report = replayed(bundle, "q_halt_SB", (1, 1), 0.01)
    assert report.num_different_halts == 0
    assert breaks(report)


def test_logits_that_are_not_finite_never_pass(bundle: Bundle) -> None:
    report = replayed(bundle, "logits_SBTV", (1, 1, 1, 1), np.nan)
    assert report.max_logit_gap == float("inf")
    assert breaks(report)


def test_an_engine_without_logits_is_refused(bundle: Bundle) -> None:
    silent = replace(side(bundle), engine=ScriptedEngine(num_slots=3, seq_len=16))
    with pytest.raises(ValueError, match="want_logits"):
        report_on(
            golden_of(bundle), silent, golden_questions(bundle.golden()), bundle, to_the_end=True
        )
