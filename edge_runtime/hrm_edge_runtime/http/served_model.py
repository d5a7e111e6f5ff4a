"""A model as the HTTP process knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.http.schema import HaltingView, ModelView
from hrm_edge_runtime.manifest import Manifest
from hrm_edge_runtime.worker.reports import LaneReport
from hrm_puzzles.puzzle import Puzzle


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """One model as the HTTP process knows it: everything but the engine.

    `num_slots` are those asked for; how many there are the engine tells. Without `lane_key` it is the model's name.
    `held_out` is a question of its kind that it was not trained on, as a person would send it, where there is one.
    """

    manifest: Manifest
    puzzle: Puzzle
    precision: str
    num_slots: int
    max_attempts: int
    puzzle_ids: Mapping[str, int] = field(default_factory=dict[str, int])
    lane_key: str | None = None
    held_out: object = None

    @classmethod
    def of(
        cls, bundle: Bundle, *, precision: str, num_slots: int, max_attempts: int, lane: str | None = None
    ) -> ServedModel:
        return cls(
            manifest=bundle.manifest,
            lane_key=lane,
            puzzle=bundle.puzzle,
            precision=precision,
            num_slots=num_slots,
            max_attempts=max_attempts,
            puzzle_ids={name: row for row, name in enumerate(bundle.identifiers)},
            held_out=bundle.golden_question(),
        )

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def lane(self) -> str:
        """The key of its lane in the engine."""
        return self.lane_key or self.name

    @property
    def sample(self) -> object:
        """A question as a person would send it."""
        return self.held_out or self.puzzle.sample(list(self.puzzle_ids))

    @cached_property
    def halting(self) -> HaltingPolicy:
        """The rule where a request says nothing."""
        return self.manifest.halting_policy(self.precision)

    def view(self, report: LaneReport | None = None) -> ModelView:
        """What /models tells; of the lane only what the engine has reported."""
        manifest = self.manifest
        rows, cols = self._size()
        return ModelView(
            name=manifest.name,
            kind=self.puzzle.name,
            proof_exists=self.puzzle.proof_exists,
            seq_len=manifest.seq_len,
            vocab_size=manifest.vocab_size,
            hidden_size=manifest.hidden_size,
            max_segments=manifest.max_segments,
            halting=HaltingView(policy=self.halting.kind, threshold=self.halting.threshold),
            precision=self.precision,
            slots=report.num_slots if report else self.num_slots,
            slots_rule=report.slots_rule if report else None,
            step_ms={size: round(1000 * seconds, 3) for size, seconds in report.step_s.items()} if report else {},
            memory_bytes=report.memory_bytes if report else None,
            max_attempts=self.max_attempts,
            rows=rows,
            cols=cols,
            identifiers=manifest.num_puzzle_ids,
            sample=self.sample,
            provenance=manifest.provenance,
        )

    def _size(self) -> tuple[int, int] | tuple[None, None]:
        """Rows and columns of the largest board, which is what a full row of tokens shows; none for other puzzles."""
        full_T = np.full(self.puzzle.seq_len, self.puzzle.vocab_size - 1, np.int32)
        shape = self.puzzle.decode(full_T).shape
        return shape if len(shape) == 2 else (None, None)
