"""A lane under submits, cancels, deadlines, garbage and steps in any order, beside a model."""

from itertools import count

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scripted_engine import Script, ScriptedEngine

from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.scheduler import AGEING_S
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import StepOutput
from hrm_puzzles.puzzle import RIGHT, WRONG

MAX_SEGMENTS = 6
KINDS = st.sampled_from((0, 0, 10, 20, 30))
NAN, IMPOSSIBLE, TOUCHY = 1, 2, 3  # tens of a kind: margins, tokens or a check that fail


class PlusOne:
    """Questions are (id, segments, kind); the right answer has every token one higher."""

    vocab_size = 1 << 20

    def check_BT(self, inputs_BT: np.ndarray, answers_BT: np.ndarray) -> np.ndarray:
        if (inputs_BT[:, 2] // 10 == TOUCHY).any():
            raise RuntimeError("this check cannot bear such a question")
        is_right_B = (answers_BT == inputs_BT + 1).all(axis=1)
        return np.where(is_right_B, RIGHT, WRONG).astype(np.int8)


class Watched(ScriptedEngine):
    """Fails as the kind of a question says, and remembers the width of every step."""

    widths: list[int]
    now = 0.0  # each step takes a second

    def step(self, num_active: int) -> StepOutput:
        self.widths.append(num_active)
        self.now += 1.0
        output = super().step(num_active)
        kind_B = output.answer_BT[:, 2] // 10
        margin_B = np.where(kind_B == NAN, np.nan, output.halt_margin_B)
        answer_BT = output.answer_BT.copy()
        answer_BT[kind_B == IMPOSSIBLE, 1] = -5
        return StepOutput(answer_BT=answer_BT, halt_margin_B=margin_B, q_halt_B=output.q_halt_B)


class AnyLane(RuleBasedStateMachine):
    @initialize(
        num_slots=st.integers(1, 4),
        queue_limit=st.integers(0, 5),
        run_length=st.sampled_from((1, 1, 2, 4)),
    )
    def start(self, num_slots: int, queue_limit: int, run_length: int) -> None:
        self.num_slots = num_slots
        self.queue_limit = queue_limit
        self.engine = Watched(
            num_slots=num_slots,
            seq_len=3,
            play=lambda tokens_T: Script(answer_T=tokens_T + 1, segments=int(tokens_T[1])),
        )
        self.engine.widths = []
        self.lane = Lane(
            self.engine,
            PlusOne(),
            queue_limit=queue_limit,
            clock=lambda: self.engine.now,
            run_length=run_length,
        )
        self.ids = count(1)
        self.alive = {}
        self.ended = set()
        self.answered = []
        self.jobs = [None] * num_slots  # the last one of each slot
        self.generations = [0] * num_slots
        self.seated = set()

    @rule(
        segments=st.integers(1, 9),
        kind=KINDS,
        priority=st.integers(-1, 2),
        patience=st.none() | st.floats(0.5, 12.0),
        pause=st.floats(0.0, 4.0),
    )
    def submit(
        self, segments: int, kind: int, priority: int, patience: float | None, pause: float
    ) -> None:
        self.engine.now += pause
        now = self.engine.now
        attempt_id = next(self.ids)
        one = Attempt(
            attempt_id=attempt_id,
            tokens_T=np.array([attempt_id, segments, kind], np.int32),
            puzzle_vector_E=np.zeros(1, np.float32),
            policy=HaltingPolicy(kind="verified", max_segments=MAX_SEGMENTS),
            arrival_s=now,
            priority=priority,
            deadline_s=None if patience is None else now + patience,
        )
        room = self.num_slots + self.queue_limit - len(self.alive)
        if room == 0:
            with pytest.raises(ValueError, match="queue already holds its limit"):
                self.lane.submit(one)
        else:
            self.lane.submit(one)
            self.alive[attempt_id] = one

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        attempt_id = data.draw(st.sampled_from(sorted(self.alive)))
        dropped = self.lane.drop(attempt_id, "cancelled")
        assert (dropped.attempt_id, dropped.halted_by) == (attempt_id, "cancelled")
        del self.alive[attempt_id]

    @rule()
    def step(self) -> None:
        before = dict(self.alive)
        num_steps = len(self.engine.widths)
        began = self.engine.now
        is_within_a_run = self.lane.num_ahead > 0
        for result in self.lane.step():
            self.take(result, began)
        widths = self.engine.widths
        if is_within_a_run:
            assert widths[-1] == widths[-2], "somebody came or went within a run"
        elif len(widths) > num_steps:
            num_alive = 0
            for one in before.values():
                num_alive += one.deadline_s is None or one.deadline_s > began
            width = min(self.num_slots, num_alive)
            assert widths[-1] == width, "an idle row, or a slot idle"
        if not is_within_a_run:
            for one in self.alive.values():
                assert one.deadline_s is None or one.deadline_s > began, "a deadline passed"
            slots = [one.slot for one in self.lane.scheduler.dense]
            assert slots == list(range(len(slots))), "a gap between the slots in use"
        self.check_order()

    def take(self, result: Attempt, began: float) -> None:
        assert result.attempt_id not in self.ended, "a job ended twice"
        self.ended.add(result.attempt_id)
        one = self.alive.pop(result.attempt_id)
        is_garbage = bool(one.tokens_T[2])
        segments = int(one.tokens_T[1])
        if result.halted_by == "deadline":
            assert one.deadline_s <= max(began, self.engine.now)
            if result.answer_T is not None:
                self.answered.append((result, one.tokens_T.tolist()))
        elif result.halted_by == "failed":
            assert is_garbage
            assert result.answer_T is None
            assert result.verified is None
        else:
            assert not is_garbage
            proven = segments <= MAX_SEGMENTS
            assert result.halted_by == ("proven" if proven else "max_segments")
            assert result.verified == proven
            assert result.segments == min(segments, MAX_SEGMENTS)
            right_T = one.tokens_T + proven
            self.answered.append((result, right_T.tolist()))

    def check_order(self) -> None:
        """First in, first out among equals; age outweighs priority."""
        views = self.lane.snapshot().slots
        seated = {view.job_id for view in views if view.job_id is not None}
        waiting = [one for one in self.alive.values() if one.attempt_id not in seated]
        for attempt_id in (seated - self.seated) & set(self.alive):
            admitted = self.alive[attempt_id]
            for other in waiting:
                is_alike = other.priority == admitted.priority
                if is_alike and other.deadline_s == admitted.deadline_s:
                    assert attempt_id < other.attempt_id, "not first in, first out"
                outweighed_s = AGEING_S * (admitted.priority - other.priority + 1)
                lead_s = admitted.arrival_s - other.arrival_s
                assert outweighed_s <= 0 or lead_s < outweighed_s
        self.seated = seated

    @invariant()
    def nobody_shares_a_slot_and_generations_rise(self) -> None:
        seen = self.lane.snapshot()
        seated = [view.job_id for view in seen.slots if view.job_id is not None]
        assert len(seated) == len(set(seated)) == seen.num_active
        assert seen.num_active + seen.num_queued == len(self.alive)
        for slot, view in enumerate(seen.slots):
            if view.job_id not in (None, self.jobs[slot]):
                assert view.generation > self.generations[slot], "two jobs, one generation"
                self.jobs[slot] = view.job_id
                self.generations[slot] = view.generation

    def teardown(self) -> None:
        for _ in range(200):
            if not self.lane.has_work:
                break
            self.step()
        assert not self.alive, "somebody was forgotten"
        for result, right in self.answered:  # later segments must not change them
            assert result.answer_T.tolist() == right, "somebody else's answer"


TestAnyLane = AnyLane.TestCase
TestAnyLane.settings = settings(max_examples=50, stateful_step_count=40)
