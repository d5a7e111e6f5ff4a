"""The pages at / and /docs, which load nothing from other hosts, and boards without a model.

For boards, the kinds that generators make, and fresh puzzles with proven answers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from hrm_edge_runtime.api.errors import bad_puzzle, invalid
from hrm_edge_runtime.api.schema import (
    FreshPuzzle,
    FreshRequest,
    KindView,
    LabelAnswer,
    LabelRequest,
)
from hrm_edge_runtime.api.served_model import board_size, legend_of
from hrm_edge_server.middleware import PIECE_BYTES
from hrm_puzzles import registry
from hrm_puzzles.puzzle import PuzzleError

WEB = Path(__file__).parent / "web"

SLOW = "extreme"  # takes a second each, too long for a server
PAGE_HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",  # a string never becomes markup, even by mistake
            "trusted-types 'none'",
        )
    ),
    "Cache-Control": "no-cache",
}


def page(name: str) -> Response:
    text = (WEB / name).read_text(encoding="utf-8")
    return HTMLResponse(text, headers=PAGE_HEADERS)


class WebFiles(StaticFiles):
    """The files of the pages, with the same headers as the pages."""

    def __init__(self) -> None:
        super().__init__(directory=WEB)

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers.update(PAGE_HEADERS)
        if isinstance(response, FileResponse):
            response.chunk_size = PIECE_BYTES  # read as its client reads
        return response


def kinds() -> Iterator[KindView]:
    for name in registry.names():
        puzzle = registry.get(name)
        difficulties = [name for name in puzzle.difficulties if name != SLOW]
        size = board_size(puzzle)
        if difficulties and size is not None:
            rows, cols = size
            yield KindView(
                kind=puzzle.name,
                rows=rows,
                cols=cols,
                difficulties=difficulties,
                legend=legend_of(puzzle),
            )


def fresh_puzzle(request: FreshRequest) -> FreshPuzzle:
    """Generate a puzzle in up to 0.1 s of CPU time; rejects an impossible request with 422."""
    from hrm_puzzles.data.sources import fresh  # imports the packages of data sets

    try:
        puzzle = registry.get(request.kind)
        if request.difficulty == SLOW:
            problem = f"{SLOW} puzzles take too long for a server"
            raise PuzzleError(problem, "too-slow", "make them with hrm-data build")
        rng = np.random.default_rng(request.seed)
        example = fresh(puzzle, rng, request.difficulty, is_test=request.held_out)
    except PuzzleError as error:
        raise invalid(error.rule, error.problem, error.remedy) from None
    return FreshPuzzle(
        **request.model_dump(),
        puzzle=puzzle.asked(example.question, ""),
        solution=puzzle.asked(example.answer, ""),
        rating=example.rating,
    )


def judged(request: LabelRequest) -> LabelAnswer:
    """Judge a label as `hrm-data import` does; rejects the same labels, with 422."""
    from hrm_puzzles.data.examples import require_label

    try:
        puzzle = registry.get(request.kind)
        require_label(puzzle, request.puzzle, request.solution)
    except PuzzleError as error:
        raise bad_puzzle(error) from None
    verified = True if puzzle.proof_exists else None
    return LabelAnswer(verified=verified)
