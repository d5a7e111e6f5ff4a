"""A served model without its engine, and its entry in /models."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import numpy as np

from hrm_edge_runtime.api.errors import as_json, without_folders
from hrm_edge_runtime.api.schema import HaltingView, LegendView, ModelView
from hrm_edge_runtime.contract.bundle import TASKS_NAME, Bundle, Identifiers, puzzle_of
from hrm_edge_runtime.contract.card import card_of
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.manifest import Manifest, read_manifest
from hrm_edge_runtime.worker.lanes import LaneKey, LaneReport
from hrm_host.reading import json_from, text_of
from hrm_puzzles.puzzle import BLANK_IDENTIFIER, Puzzle, Routed
from hrm_puzzles.reading.legend import Lettered

AS_IN_MANIFEST = (
    "name",
    "seq_len",
    "vocab_size",
    "hidden_size",
    "max_segments",
    "attempt_kind",
    "held_out_tasks",
    "provenance",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """A model without its engine.

    `num_slots` is the requested number. `held_out` is a question that the model never saw, with its
    answer.
    """

    manifest: Manifest
    puzzle: Puzzle
    precision: str
    num_slots: int
    max_attempts: int
    lane: LaneKey
    precision_reason: str | None = None
    identifiers: Identifiers = field(default_factory=lambda: Identifiers([BLANK_IDENTIFIER]))
    tasks: Sequence[str] = ()
    held_out: tuple[object, object] | None = None
    path: Path = Path()

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        *,
        precision: str,
        num_slots: int,
        max_attempts: int,
        lane: LaneKey | None = None,
        precision_reason: str | None = None,
    ) -> "ServedModel":
        return cls(
            manifest=bundle.manifest,
            lane=lane or LaneKey(bundle.manifest.name),
            puzzle=bundle.puzzle,
            precision=precision,
            num_slots=num_slots,
            max_attempts=max_attempts,
            precision_reason=precision_reason,
            identifiers=bundle.identifiers,
            tasks=bundle.tasks(),
            held_out=bundle.example(),
            path=bundle.path,
        )

    @classmethod
    def unopened(cls, path: Path, lane: LaneKey) -> "ServedModel":
        """A model whose bundle does not open, from its manifest; raises BundleError."""
        manifest = read_manifest(path)
        return cls(
            manifest=manifest,
            lane=lane,
            puzzle=puzzle_of(manifest),
            precision=next(iter(manifest.precisions)),
            num_slots=1,
            max_attempts=1,
            path=path,
        )

    @cached_property
    def name(self) -> str:
        return self.manifest.name

    @property
    def card(self) -> str:
        return card_of(self.manifest, self.puzzle, self.path)

    @property
    def sample(self) -> object:
        """A question as a person would send it."""
        if self.held_out is None:
            return self.puzzle.sample(self.tasks)
        return self.held_out[0]

    @cached_property
    def task_list(self) -> bytes:
        """Its tasks as a JSON list in the bundle's order; a browser reorders the keys of objects.

        Cached, because making it takes 30 ms for 455 tasks.
        """
        listed: list[dict[str, object]] = []
        if TASKS_NAME in self.manifest.files:
            for name, task in json_from(text_of(self.path / TASKS_NAME)).items():
                if isinstance(task, dict):
                    listed.append({**task, "task": name})
        return as_json(listed).encode()

    @cached_property
    def routed(self) -> Routed | None:
        """The puzzle, if its answers are routes and its board frames smaller ones.

        Cached, because a protocol check takes 20 us or more.
        """
        if isinstance(self.puzzle, Routed):
            return self.puzzle
        return None

    @cached_property
    def halting(self) -> HaltingPolicy:
        return self.manifest.halting_policy(self.precision)

    def view(self, report: LaneReport | None = None, problem: str | None = None) -> ModelView:
        """The entry in /models. Without a report of the engine, some fields are null.

        `problem` is the reason if the model failed.
        """
        size = board_size(self.puzzle)
        rows, cols = size or (None, None)
        view = ModelView(
            **{name: getattr(self.manifest, name) for name in AS_IN_MANIFEST},
            state="failed" if problem else "loading",
            problem=problem and without_folders(problem),
            kind=self.puzzle.name,
            proof_exists=self.puzzle.proof_exists,
            halting=HaltingView(policy=self.halting.kind, threshold=self.halting.threshold),
            precision=self.precision,
            precision_reason=self.precision_reason,
            slots=self.num_slots,
            slots_rule=None,
            step_ms={},
            memory_bytes=None,
            max_attempts=self.max_attempts,
            rows=rows,
            cols=cols,
            identifiers=self.manifest.num_puzzle_ids,
            tasks=len(self.tasks),
            legend=legend_of(self.puzzle),
            sample=self.sample,
            card=f"/models/{quote(self.name, safe='')}/card",
        )
        if report is not None:
            view.state = "ready"
            view.slots = report.num_slots
            view.slots_rule = report.slots_rule
            view.memory_bytes = report.memory_bytes
            for num_slots, seconds in report.step_s.items():
                view.step_ms[num_slots] = round(1000 * seconds, 3)
        return view


def board_size(puzzle: Puzzle) -> tuple[int, int] | None:
    """Rows and columns of the (largest) board; None if the puzzle has none."""
    tokens_T = np.full(puzzle.seq_len, puzzle.vocab_size - 1, np.int32)
    shape = puzzle.decode(tokens_T).shape
    if len(shape) == 2:
        return (shape[0], shape[1])
    return None


def legend_of(puzzle: Puzzle) -> LegendView | None:
    if not isinstance(puzzle, Lettered):
        return None
    legend = puzzle.legend
    return LegendView(
        values=dict(legend.values),
        symbols=dict(legend.characters),
        open_value=legend.open_value,
        described=legend.described,
    )
