"""The halting rule: what each policy promises; the rule for all slots is the rule for one."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_edge_runtime.contract.halting import HaltingPolicy, PolicyKind, decide, stops_B
from hrm_puzzles.puzzle import RIGHT, UNKNOWN, WRONG

LEARNED = HaltingPolicy(kind="learned", threshold=0.5, max_segments=4)
VERIFIED = HaltingPolicy(kind="verified", threshold=0.5, max_segments=4)
FIXED = HaltingPolicy(kind="fixed", max_segments=4)

VERIFIED_BY = {RIGHT: True, WRONG: False, UNKNOWN: None}
margins = st.floats(-2, 2, width=32) | st.sampled_from([float("nan"), float("inf"), float("-inf")])
verdicts = st.sampled_from([RIGHT, WRONG, UNKNOWN])
policies = st.builds(
    HaltingPolicy,
    kind=st.sampled_from(get_args(PolicyKind)),
    threshold=st.floats(-1, 1, width=32),
    max_segments=st.integers(1, 5),
)


DECISIONS = {
    "learned halts on a margin above the threshold": (0.6, 1, False, LEARNED, "learned"),
    "learned goes on at the threshold": (0.5, 1, False, LEARNED, None),
    "learned does not look at the proof": (0.0, 1, True, LEARNED, None),
    "verified halts at once on a proof": (-9.0, 1, True, VERIFIED, "proven"),
    "verified goes on with a wrong answer": (9.0, 1, False, VERIFIED, None),
    "verified is learned if no proof exists": (9.0, 1, None, VERIFIED, "learned"),
    "fixed goes on before its last segment": (9.0, 3, True, FIXED, None),
    "fixed halts at its last segment": (-9.0, 4, False, FIXED, "max_segments"),
}


@pytest.mark.parametrize(
    ("margin", "segment", "verified", "policy", "reason"), DECISIONS.values(), ids=DECISIONS
)
def test_a_policy_decides(
    margin: float, segment: int, verified: bool | None, policy: HaltingPolicy, reason: str | None
):
    assert decide(margin, segment, verified, policy) == reason


rows_of_slots = st.lists(st.tuples(margins, st.integers(1, 6), verdicts), min_size=1, max_size=8)


@given(rows=rows_of_slots, policy=policies)
def test_slots_follow_one_rule(rows: list[tuple[float, int, int]], policy: HaltingPolicy):
    margins, segments, verdicts = zip(*rows, strict=True)
    verdict_B = np.array(verdicts, np.int8)
    stopped_B = stops_B(np.array(margins), np.array(segments), verdict_B, policy)
    for stopped, (margin, segment, verdict) in zip(stopped_B, rows, strict=True):
        reason = decide(margin, segment, VERIFIED_BY[verdict], policy)
        assert stopped == (reason is not None)
        assert stopped or segment < policy.max_segments
