"""Halting policies are scored by what they would have done, on courses that a reader can follow.

Shapes: N puzzles, S segments, T = 16 tokens (4x4 Sudoku).
"""

import numpy as np
import pytest

from hrm_calibration.halting_curve import (
    PolicyScore,
    Rollout,
    Score,
    choose,
    fixed_scores,
    learned_curve,
    roll_out,
    score_policy,
)
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.scripted import Script, ScriptedEngine
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import RIGHT, UNKNOWN, WRONG

SUDOKU = registry.get("sudoku-4x4")
RATINGS = [0, 0, 5, 60, 12]
NEVER = 99
LEARNED = HaltingPolicy(kind="learned", max_segments=4)


def questions() -> Questions:
    """Five puzzles; the label of the last says that its first cell does not matter."""
    tokens: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for seed in range(5):
        example = SUDOKU.generate(np.random.default_rng(seed), "easy")
        tokens.append(SUDOKU.encode(example.question))
        labels.append(SUDOKU.encode(example.answer))
    labels_NT = np.stack(labels)
    labels_NT[4, 0] = -100
    return Questions(
        tokens_NT=np.stack(tokens),
        labels_NT=labels_NT,
        puzzle_ids_N=np.zeros(5, np.int32),
        ratings_N=np.array(RATINGS, np.int32),
        source="here",
    )


def played(num_slots: int = 2) -> Rollout:
    """Right after 1 segment, after 3, sure and wrong after 2, never done, right but for a cell."""
    asked = questions()
    answers_NT = asked.labels_NT.copy()
    answers_NT[4, 0] = 1
    answers_NT[2] = 1
    scripts: dict[bytes, Script] = {}
    for index, segments in enumerate((1, 3, 2, NEVER, 2)):
        key = asked.tokens_NT[index].tobytes()
        scripts[key] = Script(answer_T=answers_NT[index], segments=segments)

    def play(tokens_T: np.ndarray) -> Script:
        return scripts[tokens_T.tobytes()]

    engine = ScriptedEngine(num_slots=num_slots, seq_len=16, play=play)
    table_PE = np.zeros((1, 4), np.float32)
    return roll_out(engine, SUDOKU, table_PE, asked, num_segments=4)


def test_every_puzzle_is_recorded_after_every_segment() -> None:
    rollout = played()
    assert rollout.exact_SN.T.tolist() == [
        [True, True, True, True],
        [False, False, True, True],
        [False, False, False, False],
        [False, False, False, False],
        [False, True, True, True],
    ]
    assert (rollout.margin_SN > 0).sum(axis=0).tolist() == [4, 2, 3, 0, 3]
    assert (rollout.verdict_SN == RIGHT).sum(axis=0).tolist() == [4, 2, 0, 0, 0]


@pytest.mark.parametrize("num_slots", [1, 3, 5, 8])
def test_the_number_of_slots_changes_nothing(num_slots: int) -> None:
    one = played(2)
    other = played(num_slots)
    assert np.array_equal(one.margin_SN, other.margin_SN)
    assert np.array_equal(one.verdict_SN, other.verdict_SN)
    assert np.array_equal(one.exact_SN, other.exact_SN)


def test_the_learned_rule_stops_when_the_model_is_sure() -> None:
    score = score_policy(played(), LEARNED).total
    assert score.mean_segments == (1 + 3 + 2 + 4 + 2) / 5
    assert score.exact == 3 / 5
    assert score.proven == 2 / 5


def verified_score(rollout: Rollout) -> PolicyScore:
    policy = HaltingPolicy(kind="verified", max_segments=rollout.num_segments)
    return score_policy(rollout, policy)


def test_the_verified_rule_goes_on_until_there_is_a_proof() -> None:
    score = verified_score(played()).total
    assert score.mean_segments == (1 + 3 + 4 + 4 + 4) / 5
    assert score.exact == 3 / 5


def test_fixed_policies_run_so_many_segments_and_no_more() -> None:
    scores = [point.total for point in fixed_scores(played())]
    assert [score.mean_segments for score in scores] == [1, 2, 4]
    assert [score.exact for score in scores] == [1 / 5, 2 / 5, 3 / 5]


def test_scores_are_given_by_difficulty() -> None:
    scores = score_policy(played(), LEARNED).scores
    num_puzzles = {name: score.num_puzzles for name, score in scores.items()}
    assert num_puzzles == {"all": 5, "0": 2, "1-9": 1, "10-19": 1, "50+": 1}
    assert scores["0"].exact == 1.0
    assert scores["0"].mean_segments == 2.0
    assert scores["50+"].mean_segments == 4.0


def three_puzzles() -> Rollout:
    """The second is sure (margin 1) before it is right, and surer (3) once it is."""
    margin_NS = np.array([[2, 4, 5], [1, 1, 3], [-1, 2, 2]], np.float32)
    exact_NS = np.array([[True, True, True], [False, False, True], [False, True, True]])
    verdict_SN = np.full((3, 3), UNKNOWN, np.int8)
    return Rollout(margin_SN=margin_NS.T, verdict_SN=verdict_SN, exact_SN=exact_NS.T)


def test_a_higher_threshold_never_stops_earlier() -> None:
    segments = [point.total.mean_segments for point in learned_curve(three_puzzles())]
    assert segments == sorted(segments)
    assert segments[-1] == 3  # above every margin: all segments


def spent_and_solved(score: Score) -> tuple[float, float]:
    return score.mean_segments, score.exact


def test_the_curve_has_a_point_for_every_margin() -> None:
    curve = learned_curve(three_puzzles())
    points = {point.policy.threshold: spent_and_solved(point.total) for point in curve}
    assert points == {
        -1.0: ((1 + 1 + 2) / 3, 2 / 3),
        0.0: ((1 + 1 + 2) / 3, 2 / 3),
        1.0: ((1 + 3 + 2) / 3, 1.0),
        2.0: ((2 + 3 + 3) / 3, 1.0),
        3.0: ((2 + 3 + 3) / 3, 1.0),
        4.0: (3.0, 1.0),
        5.0: (3.0, 1.0),
    }


@pytest.mark.parametrize(("max_loss", "threshold"), [(0.005, 1.0), (0.34, -1.0)])
def test_the_threshold_chosen_spends_least_within_the_loss_allowed(
    max_loss: float,
    threshold: float,
) -> None:
    chosen = choose(learned_curve(three_puzzles()), max_loss)
    assert chosen.policy.threshold == threshold


def test_without_a_proof_the_verified_rule_is_the_learned_one() -> None:
    policy = HaltingPolicy(kind="learned", max_segments=3)
    learned = score_policy(three_puzzles(), policy)
    assert verified_score(three_puzzles()).scores == learned.scores


def test_a_disproven_answer_does_not_stop_the_verified_rule() -> None:
    rollout = three_puzzles()
    rollout.verdict_SN[:] = np.where(rollout.exact_SN, RIGHT, WRONG)
    score = verified_score(rollout).total
    assert score.mean_segments == (1 + 3 + 2) / 3
    assert score.exact == 1.0
