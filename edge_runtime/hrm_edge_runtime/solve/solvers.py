"""Who solves: a server over HTTP, or a bundle opened in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.factory import Choice
from hrm_edge_runtime.http.errors import ServiceError
from hrm_edge_runtime.http.schema import ModelView, SolveAnswer, SolveRequest
from hrm_edge_runtime.solve.client import Client, KeyRefusedError, ServerError, UnreachableError
from hrm_edge_runtime.solve.reading import SolvingError
from hrm_puzzles import registry
from hrm_puzzles.puzzle import Puzzle, PuzzleError

Outcome = SolveAnswer | ServiceError | ServerError
SolveAll = Callable[[Iterable[SolveRequest]], Iterable[tuple[int, Outcome]]]


@dataclass(frozen=True, kw_only=True)
class Solver:
    """Somebody who solves puzzles; outcomes come with their position, in any order.

    `puzzles` are those known here, by the name of the model that solves them.
    """

    puzzles: Mapping[str, Puzzle]
    solve_all: SolveAll

    @property
    def shortest(self) -> int:
        """The length of the shortest text that can be a whole puzzle."""
        return min(puzzle.seq_len for puzzle in self.puzzles.values())


@contextlib.contextmanager
def from_bundle(bundle: Bundle, choice: Choice, *, num_slots: int, num_threads: int | None) -> Generator[Solver]:
    """A solver in this process."""
    from hrm_edge_runtime.solve.local import OfflineSolver

    offline = OfflineSolver(bundle=bundle, choice=choice, num_slots=num_slots, num_threads=num_threads)
    yield Solver(puzzles={bundle.manifest.name: bundle.puzzle}, solve_all=offline.solve_all)


@contextlib.contextmanager
def from_server(
    url: str, *, api_key: str | None, patience_s: float, kind: str | None = None, model: str | None = None
) -> Generator[Solver]:
    """A solver behind HTTP; refuses where no server answers, or where it serves only puzzles unknown here.

    `kind` and `model` say which of its models are meant.
    """
    try:
        with Client(url, api_key=api_key, patience_s=patience_s) as client:
            meant = [one for one in client.models() if model in (None, one.name) and kind in (None, one.kind)]
            yield Solver(puzzles=_known(url, meant), solve_all=client.solve_many)
    except KeyRefusedError as error:
        given = "does not know this one" if api_key else "was sent none"
        raise SolvingError(
            f"this server asks for a key and {given}: set HRM_API_KEY, or give --key-file a file that holds it."
        ) from error
    except (ServerError, UnreachableError) as error:
        raise SolvingError(str(error)) from error


def _known(url: str, models: Iterable[ModelView]) -> dict[str, Puzzle]:
    found: dict[str, Puzzle] = {}
    for model in models:
        with contextlib.suppress(PuzzleError):
            found[model.name] = registry.get(model.kind)
    if not found:
        raise SolvingError(f"{url} serves no such model of a puzzle known here: ask it with curl {url}/models.")
    return found
