"""The run: entries in, outcomes out in the order of the entries, whatever order they are solved in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from hrm_edge_runtime.http.body import solve_request_from
from hrm_edge_runtime.http.errors import ServiceError
from hrm_edge_runtime.http.schema import SolveRequest
from hrm_edge_runtime.solve.client import NOT_NOW, ServerError
from hrm_edge_runtime.solve.reading import Entry, SolvingError
from hrm_edge_runtime.solve.solvers import Outcome, Solver

Options = Mapping[str, object]


def options_of(fields: Options) -> Options:
    """The stated fields of a request; refuses values that no request may have."""
    stated = {name: value for name, value in fields.items() if value is not None}
    try:
        SolveRequest.model_validate({"puzzle": None, **stated})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SolvingError(f"{first['loc'][0]} cannot be {first['input']!r}: {first['msg']}.") from error
    return stated


def solve_in_order(solver: Solver, entries: Iterator[Entry], options: Options) -> Iterator[tuple[Entry, Outcome]]:
    """Each entry with its outcome; `options` are fields of every request that does not state them itself.

    Refuses to go on where a server will not take a puzzle for the moment: that is no outcome to keep.
    """
    line = _Line(entries, options)
    for position, outcome in solver.solve_all(line.requests()):
        if isinstance(outcome, ServerError) and outcome.detail.reason in NOT_NOW:
            raise SolvingError(str(outcome))
        line.end(position, outcome)
        yield from line.front()
    yield from line.front()


class _Line:
    """The entries under way, and the ends of those that were faster than somebody before them."""

    def __init__(self, entries: Iterator[Entry], options: Options) -> None:
        self._entries = entries
        self._options = options
        self._waiting: dict[int, Entry] = {}
        self._ended: dict[int, Outcome] = {}
        self._place_of: dict[int, int] = {}

    def requests(self) -> Iterator[SolveRequest]:
        """What a solver is given; its positions count these."""
        position = 0
        for place, entry in enumerate(self._entries):
            self._waiting[place] = entry
            try:
                request = solve_request_from(json.dumps({**self._options, **entry.fields}).encode())
            except ServiceError as refusal:
                self._ended[place] = refusal
                continue
            self._place_of[position] = place
            position += 1
            yield request

    def end(self, position: int, outcome: Outcome) -> None:
        self._ended[self._place_of.pop(position)] = outcome

    def front(self) -> Iterator[tuple[Entry, Outcome]]:
        """Those whose predecessors have all left; they leave too."""
        while self._waiting and (place := next(iter(self._waiting))) in self._ended:
            yield self._waiting.pop(place), self._ended.pop(place)
