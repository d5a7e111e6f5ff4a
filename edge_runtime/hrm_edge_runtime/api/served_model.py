"""A served model without its engine: what it is, and how it shows in /models."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from hrm_edge_runtime.api.schema import HaltingView, ModelView
from hrm_edge_runtime.contract.bundle import TASKS_NAME, Bundle, Identifiers
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.manifest import Manifest
from hrm_edge_runtime.worker.lanes import LaneReport
from hrm_puzzles.puzzle import BLANK_IDENTIFIER, Puzzle, Routed

AS_IN_MANIFEST = (
    "name",
    "seq_len",
    "vocab_size",
    "hidden_size",
    "max_segments",
    "attempts",
    "provenance",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """A model without its engine; `num_slots` were asked for, `held_out` is a question it never saw and its answer."""

    manifest: Manifest
    puzzle: Puzzle
    precision: str
    num_slots: int
    max_attempts: int
    lane: str
    identifiers: Identifiers = field(default_factory=lambda: Identifiers([BLANK_IDENTIFIER]))
    tasks: Sequence[str] = ()
    held_out: tuple[object, object] | None = None
    tasks_file: Path | None = None

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        *,
        precision: str,
        num_slots: int,
        max_attempts: int,
        lane: str | None = None,
    ) -> "ServedModel":
        return cls(
            manifest=bundle.manifest,
            lane=lane or bundle.manifest.name,
            puzzle=bundle.puzzle,
            precision=precision,
            num_slots=num_slots,
            max_attempts=max_attempts,
            identifiers=bundle.identifiers,
            tasks=bundle.tasks(),
            held_out=bundle.golden_example(),
            tasks_file=bundle.path / TASKS_NAME if TASKS_NAME in bundle.manifest.files else None,
        )

    @cached_property
    def name(self) -> str:
        return self.manifest.name

    @property
    def sample(self) -> object:
        return self.held_out[0] if self.held_out else self.puzzle.sample(self.tasks)

    @cached_property
    def routed(self) -> Routed | None:
        """Its puzzle where an answer is a way; kept, since to ask a protocol takes 20 us and more."""
        return self.puzzle if isinstance(self.puzzle, Routed) else None

    @cached_property
    def halting(self) -> HaltingPolicy:
        return self.manifest.halting_policy(self.precision)

    def view(self, report: LaneReport | None = None) -> ModelView:
        """The entry in /models; of the lane only what the engine has reported."""
        manifest = self.manifest
        rows, cols = board_size(self.puzzle) or (None, None)
        return ModelView(
            **{name: getattr(manifest, name) for name in AS_IN_MANIFEST},
            kind=self.puzzle.name,
            proof_exists=self.puzzle.proof_exists,
            halting=HaltingView(policy=self.halting.kind, threshold=self.halting.threshold),
            precision=self.precision,
            slots=report.num_slots if report else self.num_slots,
            slots_rule=report.slots_rule if report else None,
            step_ms={size: round(1000 * seconds, 3) for size, seconds in report.step_s.items()}
            if report
            else {},
            memory_bytes=report.memory_bytes if report else None,
            max_attempts=self.max_attempts,
            rows=rows,
            cols=cols,
            identifiers=manifest.num_puzzle_ids,
            tasks=len(self.tasks),
            sample=self.sample,
        )


def board_size(puzzle: Puzzle) -> tuple[int, int] | None:
    """Rows and columns of the (largest) board, None where it has none."""
    shape = puzzle.decode(np.full(puzzle.seq_len, puzzle.vocab_size - 1, np.int32)).shape
    return (shape[0], shape[1]) if len(shape) == 2 else None
