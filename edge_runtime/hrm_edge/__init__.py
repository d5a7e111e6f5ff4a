"""HRM Edge from Python: solve puzzles in this process or through a server.

import hrm_edge
puzzle = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
answer = hrm_edge.solve(puzzle)
answer.solution, answer.status    # "534678912...", "proven"
hrm_edge.Client("http://127.0.0.1:8000").solve(puzzle, attempts=16)

`fields` are the fields of a request (docs/api.md): kind, policy, max_segments, attempts.

The names load on first use: the commands in `hrm_edge.commands` start without pydantic and httpx.
This package never imports torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hrm_edge.solving import (
        Answer,
        AsyncClient,
        Client,
        Refusal,
        RefusedError,
        ServerError,
        UnreachableError,
        solve,
        solve_many,
    )

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "Refusal",
    "RefusedError",
    "ServerError",
    "UnreachableError",
    "solve",
    "solve_many",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hrm_edge import solving

    return getattr(solving, name)
