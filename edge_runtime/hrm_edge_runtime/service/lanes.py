"""From opened bundles to what is served: the HTTP process's view of each, and the recipe for the engine's lanes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.factory import prepare
from hrm_edge_runtime.manifest import BundleError
from hrm_edge_runtime.service.questions import ServedModel
from hrm_edge_runtime.service.workbench import LaneOptions, MakeWorkbench, bundle_workbench


@dataclass(frozen=True, kw_only=True)
class LaneDefaults:
    """How to run every bundle; `engine` is ENGINE[:PRECISION]."""

    engine: str
    num_slots: int
    num_threads: int | None
    queue_limit: int
    max_attempts: int


def planned(bundles: Sequence[Bundle], defaults: LaneDefaults) -> tuple[list[ServedModel], MakeWorkbench]:
    """What is served, and how its engine process makes the lanes.

    Builds what the engines need built; refuses two bundles of one name, and what `prepare` refuses.
    """
    names = [bundle.manifest.name for bundle in bundles]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise BundleError(f"two bundles are named {doubled[0]!r}: serve one of them, or export one under another name.")
    lanes = tuple(_lane(bundle, defaults) for bundle in bundles)
    models = [_model(bundle, lane) for bundle, lane in zip(bundles, lanes, strict=True)]
    return models, functools.partial(bundle_workbench, lanes)


def _lane(bundle: Bundle, defaults: LaneDefaults) -> LaneOptions:
    return LaneOptions(
        bundle_path=bundle.path,
        choice=prepare(bundle, defaults.engine, num_slots=defaults.num_slots),
        num_slots=defaults.num_slots,
        num_threads=defaults.num_threads,
        queue_limit=defaults.queue_limit,
        max_attempts=defaults.max_attempts,
    )


def _model(bundle: Bundle, lane: LaneOptions) -> ServedModel:
    return ServedModel.of(
        bundle, precision=lane.choice.precision, num_slots=lane.num_slots, max_attempts=lane.max_attempts
    )
