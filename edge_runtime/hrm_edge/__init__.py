"""HRM Edge from Python: solve puzzles in this process or through a server (docs/python.md).

import hrm_edge
puzzle = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
answer = hrm_edge.solve(puzzle)
answer.solution, answer.status    # "534678912...", "proven"
hrm_edge.Client("http://127.0.0.1:8000").solve(puzzle, attempts=16)

In this process
    solve(puzzle, bundle=None, **fields)         the Answer; raises RefusedError
    solve_many(puzzles, bundle=None, **fields)   an Answer or a Refusal each, in order
Through a server
    Client(url, api_key=None)        solve, solve_many, as_finished, stream, models
                                     from any thread; HRM_API_KEY is the default key
What you pass
    a puzzle: text, rows, a flat list, an array, an ARC task, or a Request
    bundle: a folder from hrm-export, or the name of a shipped model
    fields: those of a request (docs/api.md), as attempts, max_segments, policy, model, kind
What you get
    Answer    solution, status, segments, model, route, ...
    Refusal   reason, field, rule, cell, message, remedy
    Segment   an event of stream: solution, changed, margin; the last event is the Answer
    Model     an entry of models: name, kind, state, sample, ...
What you catch
    Error                       the base of all
    +-- RefusedError            the puzzle or a field is not valid; `detail` is a Refusal
    |   +-- ServerError         a server refused, with `status`
    |       +-- UnavailableError    for now: try again after `retry_after_s`
    +-- UnreachableError        no server answers
    +-- BundleError             a bundle is missing or damaged
    +-- EngineUnavailableError  this machine cannot run the engine
"""

from typing import TYPE_CHECKING

# The names load on first use: the commands in `hrm_edge.commands` start without pydantic and httpx.
if TYPE_CHECKING:
    from hrm_edge.solvers import (
        Answer,
        BundleError,
        Client,
        EngineUnavailableError,
        Error,
        Model,
        Refusal,
        RefusedError,
        Request,
        Segment,
        ServerError,
        UnavailableError,
        UnreachableError,
        solve,
        solve_many,
    )

__all__ = [
    "Answer",
    "BundleError",
    "Client",
    "EngineUnavailableError",
    "Error",
    "Model",
    "Refusal",
    "RefusedError",
    "Request",
    "Segment",
    "ServerError",
    "UnavailableError",
    "UnreachableError",
    "solve",
    "solve_many",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hrm_edge import solvers

    return getattr(solvers, name)
