"""Questions tried as several attempts over one lane: copies under the puzzle's symmetries, each in a slot of its own.

The first proven answer wins. Where no proof exists the attempts vote, and the vote is closed as soon as the voters to
come cannot change it. Either way the attempts that remain are dropped before the very next segment. Every question is
concluded exactly once.

Attempts after a question's first stand behind the first attempts of all others in line, so trying harder takes slots
that nobody else asks for.

Shapes: T tokens, P rows of the puzzle table.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.parties import Pace, Party
from hrm_edge_runtime.batching.result import Result
from hrm_edge_runtime.batching.scheduler import Attempt, QueueFull
from hrm_edge_runtime.batching.stats import LaneSnapshot, Outcome
from hrm_edge_runtime.batching.symmetries import SymmetricPuzzle, TaskVariants
from hrm_edge_runtime.batching.task import Conclusion, SegmentEvent, Task, Turn
from hrm_edge_runtime.batching.voting import Winner, winner
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32
from hrm_puzzles.puzzle import RIGHT


class Attempts:
    """Asks in, conclusions out; whoever calls `step` owns the lane beneath.

    At most `num_slots + queue_limit` questions live at once, each with at most `max_attempts` attempts.
    """

    def __init__(
        self,
        engine: Engine,
        puzzle: SymmetricPuzzle,
        puzzle_table_PE: Float32,
        *,
        queue_limit: int,
        max_attempts: int = 1,
        identifiers: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._puzzle = puzzle
        self._puzzle_table_PE = np.asarray(puzzle_table_PE)  # mapped still, but its rows are plain arrays
        self._queue_limit = queue_limit
        self._max_attempts = max_attempts
        self._framer = TaskVariants(puzzle, identifiers)
        num_jobs = (engine.num_slots + queue_limit) * max_attempts
        self._lane = Lane(engine, puzzle, queue_limit=num_jobs, clock=clock)
        self._attempt_ids = count()
        self._clock = clock
        self._pace = Pace()
        self._parties: dict[int, Party] = {}
        self._hurried: dict[int, Party] = {}
        self._watched: dict[int, Party] = {}
        self._party_of: dict[int, Party] = {}
        self._conclusions: list[Conclusion] = []

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def queue_limit(self) -> int:
        return self._queue_limit

    def puzzle_vector(self, puzzle_id: int) -> Float32:
        """The row of the puzzle table that an engine is given beside the tokens."""
        return self._puzzle_table_PE[puzzle_id]

    @property
    def has_work(self) -> bool:
        """True while a call of `step` would do something: a question lives, or its end waits to be handed out."""
        return bool(self._parties or self._conclusions)

    def submit(self, task: Task) -> None:
        """Take a question with all its attempts or not at all; raises QueueFull, or ValueError for what cannot be."""
        if task.task_id in self._parties or not 1 <= task.num_attempts <= self._max_attempts:
            raise ValueError(
                f"task {task.task_id} with {task.num_attempts} attempts cannot be taken: give every task its own "
                f"id and 1 to {self._max_attempts} attempts."
            )
        if len(self._parties) >= self._engine.num_slots + self._queue_limit:
            raise QueueFull(self._queue_limit)
        self._lane.check_tokens(task.tokens_T)
        party = Party(task=task, variants=self._framer.variants(task.tokens_T, task.puzzle_id, task.num_attempts))
        self._parties[task.task_id] = party
        if task.best_so_far and task.deadline_s is not None:
            self._hurried[task.task_id] = party
        if task.streamed:
            self._watched[task.task_id] = party
        for attempt in range(len(party.variants)):
            job = self._job(party, attempt)
            self._lane.submit(job)
            party.living[job.attempt_id] = attempt
            self._party_of[job.attempt_id] = party

    def cancel(self, task_id: int) -> bool:
        """End a question; the next `step` reports it and refills its slots. False where it is unknown."""
        party = self._parties.get(task_id)
        if party is not None:
            self._conclude(party, None)
        return party is not None

    def step(self) -> Turn:
        """Run one segment over all living attempts and hand out every end since the last call."""
        self._end_in_time()
        touched: dict[int, Party] = {}
        events: list[SegmentEvent] = []
        for result in self._lane.step():
            party = self._party_of.pop(result.attempt_id)
            attempt = party.living.pop(result.attempt_id)
            turned = self._turned_back(party, attempt, result)
            party.ended.append(turned)
            touched[party.task.task_id] = party
            events += party.event(attempt, turned)
        events += self._glimpses_of_the_living()
        for party in touched.values():
            if (chosen := self._winner(party.ended, len(party.living))) is not None:
                self._conclude(party, chosen)
        if not self._parties:
            self._pace.rested()
        conclusions, self._conclusions = self._conclusions, []
        return Turn(conclusions=tuple(conclusions), events=tuple(events))

    def snapshot(self) -> LaneSnapshot:
        """The lane beneath, with the limit that holds for questions; its queue counts attempts."""
        return replace(self._lane.snapshot(), queue_limit=self._queue_limit)

    def _winner(self, ended: Sequence[Result], num_living: int) -> Winner | None:
        return winner(ended, num_living, proof_exists=self._puzzle.proof_exists, decode=self._puzzle.decode)

    def _end_in_time(self) -> None:
        """Conclude the questions that want their best so far by a deadline which the next segment would miss."""
        now = self._clock()
        self._pace.began(now)
        if not self._hurried:
            return
        next_end_s = self._pace.next_end_s(now, self._lane.mean_step_s)
        for party in list(self._hurried.values()):
            if party.task.deadline_s is not None and next_end_s > party.task.deadline_s:
                self._conclude_with_what_it_has(party)

    def _conclude_with_what_it_has(self, party: Party) -> None:
        seen = {
            attempt_id: now
            for attempt_id in party.living
            if (now := self._lane.look(attempt_id)) is not None and now.segments
        }
        if not seen and not any(result.answer_T is not None for result in party.ended):
            return  # it has nothing yet: the deadline itself will end it
        cut = [self._turned_back(party, party.living[attempt_id], now) for attempt_id, now in seen.items()]
        chosen = self._winner([*party.ended, *cut], 0)
        assert chosen is not None, "nobody is left who could change it"
        self._conclude(party, replace(chosen, result=replace(chosen.result, halted_by="deadline")), "deadline")

    def _job(self, party: Party, attempt: int) -> Attempt:
        task, variant = party.task, party.variants[attempt]
        return Attempt(
            attempt_id=next(self._attempt_ids),
            tokens_T=variant.tokens_T,
            puzzle_vector_E=self.puzzle_vector(variant.puzzle_id),
            policy=task.policy,
            arrival_s=task.arrival_s,
            priority=task.priority - (attempt > 0),
            deadline_s=task.deadline_s,
        )

    def _turned_back(self, party: Party, attempt: int, result: Result) -> Result:
        """A result in the variant of its question; one whose way back is broken counts as failed."""
        if attempt == 0 or result.answer_T is None:
            return result
        try:
            answer_T = party.variants[attempt].turn_back(result.answer_T)
            holds = not result.verified or self._is_right(party.task.tokens_T, answer_T)
        except Exception:  # a third party's symmetry, over an answer that may be anything
            holds, answer_T = False, None
        if not holds:
            return replace(result, answer_T=None, verified=None, halted_by="failed")
        return replace(result, answer_T=answer_T)

    def _is_right(self, tokens_T: Int32, answer_T: Int32) -> bool:
        return bool(self._puzzle.check_BT(tokens_T[None], answer_T[None])[0] == RIGHT)

    def _glimpses_of_the_living(self) -> Iterator[SegmentEvent]:
        for party in self._watched.values():
            for attempt_id, attempt in party.living.items():
                if (now := self._lane.look(attempt_id)) is not None:
                    yield from party.event(attempt, self._turned_back(party, attempt, now))

    def _conclude(self, party: Party, chosen: Winner | None, drop_as: Outcome = "outrun") -> None:
        """Tell how a question ended and drop what is left of it; without a winner it is cancelled."""
        dropped = [self._lane.drop(attempt_id, drop_as if chosen else "cancelled") for attempt_id in party.living]
        everything = [*party.ended, *dropped]
        self._conclusions.append(
            Conclusion(
                task_id=party.task.task_id,
                result=chosen.result if chosen else dropped[0],
                num_attempts=sum(result.segments > 0 for result in everything),
                total_segments=sum(result.segments for result in everything),
                votes=chosen.votes if chosen else None,
            )
        )
        for attempt_id in party.living:
            del self._party_of[attempt_id]
        for parties in (self._parties, self._hurried, self._watched):
            parties.pop(party.task.task_id, None)
