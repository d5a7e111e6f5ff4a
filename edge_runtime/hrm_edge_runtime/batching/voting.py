"""Which of a question's attempts answers it: a proven one, else the most common answer."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from hrm_edge_runtime.batching.result import Result
from hrm_edge_runtime.engines.engine import Int32
from hrm_puzzles.puzzle import Grid
from hrm_puzzles.voting import Ballot


@dataclass(frozen=True, kw_only=True, eq=False)
class Winner:
    """The result that answers a question; `votes` is None where answers can be proven or nobody gave one."""

    result: Result
    votes: int | None = None


def winner(
    ended: Sequence[Result], num_living: int, *, proof_exists: bool, decode: Callable[[Int32], Grid]
) -> Winner | None:
    """Who wins among the attempts that have ended, in their order; None while those that live may change it.

    A question without a proven answer, some of whose attempts were cut by its deadline, has missed that deadline.
    """
    proven = next((result for result in ended if result.verified), None)
    if proven is not None:
        return Winner(result=proven)
    if num_living and proof_exists:
        return None
    ballot, speakers = _counted(ended, decode)
    if num_living and not ballot.is_decided(num_living):
        return None
    leader = ballot.leader()
    result = speakers.get(leader, ended[0])
    if any(one.halted_by == "deadline" for one in ended):
        result = replace(result, halted_by="deadline")
    return Winner(result=result, votes=None if proof_exists or leader is None else ballot.votes(leader))


def _counted(ended: Sequence[Result], decode: Callable[[Int32], Grid]) -> tuple[Ballot, dict[Hashable, Result]]:
    """The votes, and for each candidate the first who gave it."""
    ballot, speakers = Ballot(), dict[Hashable, Result]()
    for result in ended:
        if result.answer_T is not None:
            grid = decode(result.answer_T)
            candidate = (grid.shape, grid.tobytes())
            ballot.cast(candidate, result.q_halt)
            speakers.setdefault(candidate, result)
    return ballot, speakers
