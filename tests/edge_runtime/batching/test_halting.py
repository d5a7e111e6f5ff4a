"""The halting rule: what each policy promises; the rule for all slots is the rule for one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_edge_runtime.contract.halting import KINDS, HaltingPolicy, decide, stops_B
from hrm_puzzles.puzzle import RIGHT, UNKNOWN, WRONG

LEARNED = HaltingPolicy(kind="learned", threshold=0.5, max_segments=4)
VERIFIED = HaltingPolicy(kind="verified", threshold=0.5, max_segments=4)
FIXED = HaltingPolicy(kind="fixed", max_segments=4)

VERIFIED_BY = {RIGHT: True, WRONG: False, UNKNOWN: None}
margins = st.floats(-2, 2, width=32) | st.sampled_from([float("nan"), float("inf"), float("-inf")])
verdicts = st.sampled_from([RIGHT, WRONG, UNKNOWN])
policies = st.builds(
    HaltingPolicy,
    kind=st.sampled_from(KINDS),
    threshold=st.floats(-1, 1, width=32),
    max_segments=st.integers(1, 5),
)


@pytest.mark.parametrize(
    ("margin", "segment", "verified", "policy", "reason"),
    [
        pytest.param(
            0.6, 1, False, LEARNED, "learned", id="learned halts on a margin above the threshold"
        ),
        pytest.param(0.5, 1, False, LEARNED, None, id="learned goes on at the threshold"),
        pytest.param(0.0, 1, True, LEARNED, None, id="learned does not look at the proof"),
        pytest.param(-9.0, 1, True, VERIFIED, "proven", id="verified halts at once on a proof"),
        pytest.param(9.0, 1, False, VERIFIED, None, id="verified goes on with a wrong answer"),
        pytest.param(
            9.0, 1, None, VERIFIED, "learned", id="verified is learned where no proof exists"
        ),
        pytest.param(0.0, 1, None, VERIFIED, None, id="and goes on like learned"),
        pytest.param(9.0, 3, True, FIXED, None, id="fixed goes on before its last segment"),
        pytest.param(-9.0, 4, False, FIXED, "max_segments", id="fixed halts at its last segment"),
    ],
)
def test_a_policy_decides(
    margin: float, segment: int, verified: bool | None, policy: HaltingPolicy, reason: str | None
) -> None:
    assert decide(margin, segment, verified, policy) == reason


@given(margin=margins, verdict=verdicts, policy=policies)
def test_every_puzzle_halts_at_the_last_segment(
    margin: float, verdict: int, policy: HaltingPolicy
) -> None:
    assert decide(margin, policy.max_segments, VERIFIED_BY[verdict], policy) is not None


@given(
    rows=st.lists(st.tuples(margins, st.integers(1, 6), verdicts), min_size=1, max_size=8),
    policy=policies,
)
def test_the_rule_for_all_slots_is_the_rule_for_one(
    rows: list[tuple[float, int, int]], policy: HaltingPolicy
) -> None:
    margin_B = np.array([margin for margin, _, _ in rows])
    segment_B = np.array([segment for _, segment, _ in rows])
    verdict_B = np.array([verdict for _, _, verdict in rows], np.int8)
    expected: list[bool] = []
    for margin, segment, verdict in rows:
        reason = decide(margin, segment, VERIFIED_BY[verdict], policy)
        expected.append(reason is not None)
    assert stops_B(margin_B, segment_B, verdict_B, policy).tolist() == expected


@pytest.mark.parametrize(
    "wrong", [{"kind": "hopeful"}, {"threshold": float("nan")}, {"max_segments": 0}]
)
def test_a_policy_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        HaltingPolicy(**wrong)  # pyright: ignore[reportArgumentType]
