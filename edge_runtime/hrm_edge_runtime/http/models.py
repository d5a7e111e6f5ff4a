"""What is served: each model as the HTTP process knows it, and the recipe for its lane in the engine process."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.bundle import SHIPPED_BUNDLES, Bundle
from hrm_edge_runtime.engines.factory import prepare
from hrm_edge_runtime.http.schema import HaltingView, ModelView
from hrm_edge_runtime.manifest import BundleError, Manifest
from hrm_edge_runtime.worker.lanes import LaneDefaults, LaneOptions, LaneReport, MakeLanes, open_lanes
from hrm_puzzles.puzzle import Puzzle

MAX_SLOTS_CPU = 8  # how many slots are tried where their number is measured
MAX_SLOTS_GPU = 16
LONG_SEQUENCE = 256  # tokens; with more of them each slot holds much, and even a GPU has enough to do with few


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """One model as the HTTP process knows it: everything but the engine.

    `num_slots` is the number asked for; the engine reports how many there are. `lane` is the key of its lane in the
    engine. `held_out` is a question that it was not trained on, as a person would send it, where there is one.
    """

    manifest: Manifest
    puzzle: Puzzle
    precision: str
    num_slots: int
    max_attempts: int
    lane: str
    puzzle_ids: Mapping[str, int] = field(default_factory=dict[str, int])
    held_out: object = None

    @classmethod
    def of(
        cls, bundle: Bundle, *, precision: str, num_slots: int, max_attempts: int, lane: str | None = None
    ) -> ServedModel:
        return cls(
            manifest=bundle.manifest,
            lane=lane or bundle.manifest.name,
            puzzle=bundle.puzzle,
            precision=precision,
            num_slots=num_slots,
            max_attempts=max_attempts,
            puzzle_ids={name: row for row, name in enumerate(bundle.identifiers)},
            held_out=bundle.golden_question(),
        )

    @cached_property
    def name(self) -> str:
        return self.manifest.name

    @property
    def sample(self) -> object:
        """A question as a person would send it."""
        return self.held_out or self.puzzle.sample(list(self.puzzle_ids))

    @cached_property
    def halting(self) -> HaltingPolicy:
        """The rule where a request names none."""
        return self.manifest.halting_policy(self.precision)

    def view(self, report: LaneReport | None = None) -> ModelView:
        """The entry in /models; of the lane only what the engine has reported."""
        manifest = self.manifest
        full_T = np.full(self.puzzle.seq_len, self.puzzle.vocab_size - 1, np.int32)  # shows the largest board
        shape = self.puzzle.decode(full_T).shape
        rows, cols = shape if len(shape) == 2 else (None, None)
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


class Library:
    """The bundles that may be served: those named at the start and all in `folders`; and how to run them.

    `lanes` says how those served now are opened, by their keys; `ModelManager` keeps it up to date.
    """

    def __init__(self, bundles: Sequence[Bundle], defaults: LaneDefaults, folders: Iterable[Path] = ()) -> None:
        self._defaults = defaults
        self._named = {bundle.path.resolve() for bundle in bundles}
        self._folders = [folder.resolve() for folder in (SHIPPED_BUNDLES, *folders)]
        self.lanes: dict[str, LaneOptions] = {}

    def find(self, text: str) -> Path:
        """The bundle directory of a name or a path; refuses every path that was not allowed at the start.

        A name is that of a shipped bundle, or of one in a folder, with or without its `.bundle`.
        """
        path = Path(text)
        names = (text, f"{text}.bundle")
        candidates = [path] if path.is_absolute() else [folder / name for folder in self._folders for name in names]
        for candidate in candidates:
            resolved = candidate.resolve()
            is_inside = any(folder in resolved.parents for folder in self._folders)
            if (is_inside or resolved in self._named) and resolved.is_dir():
                return resolved
        raise BundleError(
            f"{text[:200]!r} is no bundle this server may open: give a shipped one's name, or a directory below a "
            "--bundle-dir of its command line."
        )

    def open(self, bundle: Bundle, key: str) -> tuple[ServedModel, LaneOptions]:
        """The model, and how to open it as the lane `key`; builds what its engine needs, which can take minutes."""
        defaults = self._defaults
        max_slots = MAX_SLOTS_CPU if bundle.manifest.seq_len > LONG_SEQUENCE else MAX_SLOTS_GPU
        choice = prepare(bundle, defaults.engine, num_slots=defaults.num_slots or max_slots)
        if choice.engine == "cpu":
            max_slots = MAX_SLOTS_CPU
        model = ServedModel.of(
            bundle,
            lane=key,
            precision=choice.precision,
            num_slots=defaults.num_slots or max_slots,
            max_attempts=defaults.max_attempts,
        )
        return model, LaneOptions(
            key=key, bundle_path=bundle.path, choice=choice, max_slots=max_slots, defaults=defaults
        )

    def make_lanes(self) -> MakeLanes:
        """How a new engine process opens what is served now."""
        return functools.partial(open_lanes, tuple(self.lanes.values()))


def models_and_library(
    bundles: Sequence[Bundle], defaults: LaneDefaults, folders: Iterable[Path] = ()
) -> tuple[list[ServedModel], Library]:
    """The models to serve at the start, and the library that says how the engine process opens them.

    Builds what the engines need built; refuses two bundles of one name, and what `prepare` refuses.
    """
    names = [bundle.manifest.name for bundle in bundles]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise BundleError(f"two bundles are named {doubled[0]!r}: serve one of them, or export one under another name.")
    library = Library(bundles, defaults, folders)
    opened = [library.open(bundle, bundle.manifest.name) for bundle in bundles]
    library.lanes = {lane.key: lane for _, lane in opened}
    return [model for model, _ in opened], library
