"""The halting rule: what each policy promises, and that the rule for all slots is the rule for one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_edge_runtime.batching.halting import KINDS, REASONS, HaltingPolicy, PolicyColumns, columns_of, decide, decide_B
from hrm_puzzles.puzzle import RIGHT, UNKNOWN, WRONG

LEARNED = HaltingPolicy(kind="learned", threshold=0.5, max_segments=4)
VERIFIED = HaltingPolicy(kind="verified", threshold=0.5, max_segments=4)
FIXED = HaltingPolicy(kind="fixed", max_segments=4)

VERIFIED_BY = {RIGHT: True, WRONG: False, UNKNOWN: None}
margins = st.floats(-2, 2, width=32) | st.sampled_from([float("nan"), float("inf"), float("-inf")])
verdicts = st.sampled_from([RIGHT, WRONG, UNKNOWN])
policies = st.builds(
    HaltingPolicy, kind=st.sampled_from(KINDS), threshold=st.floats(-1, 1, width=32), max_segments=st.integers(1, 5)
)


def test_learned_halts_on_a_margin_above_the_threshold_only() -> None:
    assert decide(0.6, 1, False, LEARNED) == "learned"
    assert decide(0.5, 1, False, LEARNED) is None


def test_learned_does_not_look_at_the_proof() -> None:
    assert decide(0.0, 1, True, LEARNED) is None


def test_verified_halts_at_once_on_a_proof() -> None:
    assert decide(-9.0, 1, True, VERIFIED) == "proven"


def test_verified_goes_on_where_the_model_would_stop_with_a_wrong_answer() -> None:
    assert decide(9.0, 1, False, VERIFIED) is None


def test_verified_is_learned_where_no_proof_exists() -> None:
    assert decide(9.0, 1, None, VERIFIED) == "learned"
    assert decide(0.0, 1, None, VERIFIED) is None


def test_fixed_looks_at_the_segment_alone() -> None:
    assert decide(9.0, 3, True, FIXED) is None
    assert decide(-9.0, 4, False, FIXED) == "max_segments"


@given(margin=margins, verdict=verdicts, policy=policies)
def test_every_puzzle_halts_at_the_last_segment(margin: float, verdict: int, policy: HaltingPolicy) -> None:
    assert decide(margin, policy.max_segments, VERIFIED_BY[verdict], policy) is not None


@given(rows=st.lists(st.tuples(margins, st.integers(1, 6), verdicts, policies), min_size=1, max_size=8))
def test_the_rule_for_all_slots_is_the_rule_for_one(rows: list[tuple[float, int, int, HaltingPolicy]]) -> None:
    margin_B, segment_B, verdict_B = (np.array(column) for column in list(zip(*rows, strict=True))[:3])
    each = [columns_of(policy, 1) for *_, policy in rows]
    columns = PolicyColumns(
        kind_B=np.concatenate([one.kind_B for one in each]),
        threshold_B=np.concatenate([one.threshold_B for one in each]),
        max_segments_B=np.concatenate([one.max_segments_B for one in each]),
    )
    reason_B = decide_B(margin_B, segment_B, verdict_B.astype(np.int8), columns)
    assert [REASONS[code] for code in reason_B] == [
        decide(margin, segment, VERIFIED_BY[verdict], policy) for margin, segment, verdict, policy in rows
    ]


@pytest.mark.parametrize("wrong", [{"kind": "hopeful"}, {"threshold": float("nan")}, {"max_segments": 0}])
def test_a_policy_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        HaltingPolicy(**wrong)  # pyright: ignore[reportArgumentType]
