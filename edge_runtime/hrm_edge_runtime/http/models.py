"""From opened bundles to what is served: the HTTP process's view of each, and the recipe for the engine's lanes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hrm_edge_runtime.bundle import SHIPPED_BUNDLES, Bundle
from hrm_edge_runtime.engines.factory import prepare
from hrm_edge_runtime.http.served_model import ServedModel
from hrm_edge_runtime.manifest import BundleError
from hrm_edge_runtime.worker.lanes import LaneOptions, MakeLanes, open_lanes
from hrm_edge_runtime.worker.memory_budget import MemoryBudget

MAX_SLOTS_CPU = 8  # how many slots are tried where their number is measured
MAX_SLOTS_GPU = 16
LONG_SEQUENCE = 256  # tokens; with more of them each slot holds much, and even a GPU has enough to do with few


@dataclass(frozen=True, kw_only=True)
class LaneDefaults:
    """How to run every bundle; `engine` is ENGINE[:PRECISION], without `num_slots` their number is measured."""

    engine: str
    num_slots: int | None
    num_threads: int | None
    queue_limit: int
    max_attempts: int
    budget: MemoryBudget = field(default_factory=MemoryBudget)


class Library:
    """The bundles that may be served, and how to run them: those named at the start and whatever lies in `folders`.

    `lanes` are the recipes of those served now, by their keys; whoever changes what is served changes them too.
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
        for path in self._candidates(text):
            resolved = path.resolve()
            is_inside = any(folder in resolved.parents for folder in self._folders)
            if (is_inside or resolved in self._named) and resolved.is_dir():
                return resolved
        raise BundleError(
            f"{text[:200]!r} is no bundle this server may open: give a shipped one's name, or a directory below a "
            "--bundle-dir of its command line."
        )

    def recipe(self, bundle: Bundle, key: str) -> LaneOptions:
        """How to open a bundle as the lane `key`; builds what its engine needs built, which can take minutes."""
        return lane_options(bundle, self._defaults, key)

    def make_lanes(self) -> MakeLanes:
        """How a new engine process opens what is served now."""
        return functools.partial(open_lanes, tuple(self.lanes.values()))

    def _candidates(self, text: str) -> list[Path]:
        path = Path(text)
        if path.is_absolute():
            return [path]
        return [folder / name for folder in self._folders for name in (text, f"{text}.bundle")]


def planned(
    bundles: Sequence[Bundle], defaults: LaneDefaults, folders: Iterable[Path] = ()
) -> tuple[list[ServedModel], Library]:
    """What is served, and the library whose recipes the engine process follows.

    Builds what the engines need built; refuses two bundles of one name, and what `prepare` refuses.
    """
    names = [bundle.manifest.name for bundle in bundles]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise BundleError(f"two bundles are named {doubled[0]!r}: serve one of them, or export one under another name.")
    library = Library(bundles, defaults, folders)
    library.lanes = {bundle.manifest.name: library.recipe(bundle, bundle.manifest.name) for bundle in bundles}
    return [served_model(bundle, library.lanes[bundle.manifest.name]) for bundle in bundles], library


def lane_options(bundle: Bundle, defaults: LaneDefaults, key: str) -> LaneOptions:
    max_slots = MAX_SLOTS_CPU if bundle.manifest.seq_len > LONG_SEQUENCE else MAX_SLOTS_GPU
    choice = prepare(bundle, defaults.engine, num_slots=defaults.num_slots or max_slots)
    return LaneOptions(
        key=key,
        bundle_path=bundle.path,
        choice=choice,
        num_slots=defaults.num_slots,
        max_slots=MAX_SLOTS_CPU if choice.engine == "cpu" else max_slots,
        num_threads=defaults.num_threads,
        queue_limit=defaults.queue_limit,
        max_attempts=defaults.max_attempts,
        budget=defaults.budget,
    )


def served_model(bundle: Bundle, options: LaneOptions) -> ServedModel:
    return ServedModel.of(
        bundle,
        lane=options.key,
        precision=options.choice.precision,
        num_slots=options.num_slots or options.max_slots,
        max_attempts=options.max_attempts,
    )
