"""Halting policies are scored by what they would have done, on courses that a reader can follow."""

import numpy as np
import pytest
from calibration_tools import SUDOKU
from calibration_tools import questions as easy_questions

from hrm_calibration.halting_curve import Rollout, choose, learned_curve, roll_out, score_policy
from hrm_edge_runtime.contract.halting import HaltingPolicy, PolicyKind
from hrm_edge_runtime.engines.scripted import Script, ScriptedEngine
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import RIGHT, UNKNOWN

NEVER = 99
SEGMENTS = (1, 3, 2, NEVER, 2)
"""Segments after which the scripted model is sure of its answer to each puzzle."""


def five_questions() -> Questions:
    """Return rated puzzles; the label of the last says that its first cell does not matter."""
    asked = easy_questions(5)
    asked.labels_NT[4, 0] = -100
    return Questions(
        tokens_NT=asked.tokens_NT,
        labels_NT=asked.labels_NT,
        puzzle_ids_N=np.zeros(5, np.int32),
        ratings_N=np.array([0, 0, 5, 60, 12], np.int32),
        source="here",
    )


def played(num_slots: int = 2) -> Rollout:
    """Right after 1 segment, after 3, sure and wrong after 2, never done, right but for a cell."""
    asked = five_questions()
    answers_NT = asked.labels_NT.copy()
    answers_NT[4, 0] = 1
    answers_NT[2] = 1
    scripts: dict[bytes, Script] = {}
    for index, segments in enumerate(SEGMENTS):
        key = asked.tokens_NT[index].tobytes()
        scripts[key] = Script(answer_T=answers_NT[index], segments=segments)

    def play(tokens_T: np.ndarray) -> Script:
        return scripts[tokens_T.tobytes()]

    engine = ScriptedEngine(num_slots=num_slots, seq_len=16, play=play)
    table_PE = np.zeros((1, 4), np.float32)
    return roll_out(engine, SUDOKU, table_PE, asked, num_segments=4)


@pytest.mark.parametrize("num_slots", [1, 3, 8])
def test_every_puzzle_is_recorded_after_every_segment(num_slots: int) -> None:
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
def test_a_score_is_of_the_segments_that_the_policy_runs(
    kind: PolicyKind, segments: list[int]
) -> None:
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
    return Rollout(margin_SN=margin_NS.T, verdict_SN=verdict_SN, exact_SN=exact_NS.T)


def test_the_curve_has_a_point_for_every_margin() -> None:
    points: dict[float, tuple[float, float]] = {}
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
def test_the_threshold_chosen_spends_least_within_the_loss_allowed(
    max_loss: float, threshold: float
) -> None:
    chosen = choose(learned_curve(three_puzzles()), max_loss)
    assert chosen.policy.threshold == threshold
