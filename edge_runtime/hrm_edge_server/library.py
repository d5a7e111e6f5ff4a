"""The bundles that may be served, and how the engine opens them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES
from hrm_edge_runtime.engines import engine, factory
from hrm_edge_runtime.worker import lane_manager, lanes
from hrm_edge_server.uploads import Uploads
from hrm_parity import BUILD_COMMAND, trial

if TYPE_CHECKING:
    from hrm_edge_runtime.engines.trt.building import Build


Opened = tuple[ServedModel, lanes.LaneOptions]

_log = logging.getLogger("hrm_edge_runtime.models")


class Library:
    """The bundles that may be served and how to run them. `lanes` holds the served ones."""

    def __init__(self, defaults: lanes.LaneDefaults, uploads: Uploads | None = None) -> None:
        self.defaults = defaults
        self._uploaded: set[str] = set()
        self.uploads = uploads
        self._unbuilt: list[Bundle] = []
        self._build: Build | None = None
        self._is_closed = False
        self.lanes: dict[lanes.LaneKey, lanes.LaneOptions] = {}
        self.failed: dict[str, str] = {}
        """Why a model of the start has no engine, by name; the others are served."""
        self.joining: set[str] = set()
        """The models that the engine started without, by name, until they are open or failed."""

    def start_with(self, bundles: Sequence[Bundle]) -> list[ServedModel]:
        """The models of the start: bundles of the command line, and uploaded ones by name.

        An upload replaces the bundle of its name, unless it does not open; then it is listed as
        failed. Raises BundleError for two bundles of one name, and what `factory.presumed` raises.
        """
        by_name: dict[str, Bundle] = {}
        for bundle in bundles:
            name = bundle.manifest.name
            if name in by_name:
                raise BundleError(
                    f"two bundles are named {name!r}: serve one of them, or export one under "
                    "another name."
                )
            by_name[name] = bundle
        damaged: list[ServedModel] = []
        uploaded = self.uploads.folder.kept() if self.uploads is not None else {}
        for name, path in uploaded.items():
            try:
                bundle = Bundle.open(path)
                factory.presumed(bundle, self.defaults.engine)
            except (BundleError, engine.EngineUnavailableError) as error:
                if name in by_name:
                    _log.error("%s is not served as uploaded: %s", name, error)
                    continue
                self.note_failure(name, str(error))
                with contextlib.suppress(BundleError):  # nor can its manifest be read
                    damaged.append(ServedModel.unopened(path, lanes.LaneKey(name)))
            else:
                by_name[name] = bundle
                self._uploaded.add(name)
        self._unbuilt = list(by_name.values())
        models: list[ServedModel] = []
        for name, bundle in by_name.items():
            choice = factory.presumed(bundle, self.defaults.engine)
            model, lane = self.open_with(choice, bundle, lanes.LaneKey(name))
            self.lanes[lane.key] = lane
            models.append(model)
        return [*models, *damaged]

    def build(self) -> Iterator[ServedModel]:
        """Build what the engine needs to start, which can take minutes; yields each model.

        On TensorRT it yields the first model that builds; the others are `joining`. Other engines
        build nothing, so it yields all models. Raises EngineUnavailableError if no model builds.
        """
        while self._unbuilt and not self.joining:
            opened = self.build_next()
            if opened is None:
                continue
            model, lane = opened
            self.lanes[lane.key] = lane
            yield model
            if lane.choice.engine == factory.OPENED_WHERE_USED:
                for bundle in self._unbuilt:
                    name = bundle.manifest.name
                    self.lanes.pop(lanes.LaneKey(name), None)
                    self.joining.add(name)

    def build_next(self) -> Opened | None:
        """Build the next model of the start; None if it fails."""
        bundle = self._unbuilt[0]
        name = bundle.manifest.name
        try:
            model, lane = self.open(bundle, lanes.LaneKey(name))
        except engine.EngineUnavailableError as error:
            is_last = len(self._unbuilt) == 1 and not self.lanes.keys() - {lanes.LaneKey(name)}
            if self._is_closed or is_last:
                raise
            self.skip_next(str(error))
            return None
        problem = None
        if bundle.path.resolve().parent != SHIPPED_BUNDLES:
            problem = self._problem_at_start(bundle)
        if problem is None:
            del self._unbuilt[0]
            return model, lane
        if self._is_closed or name not in self._uploaded:
            raise BundleError(f"the bundle {name!r} is not served: {problem}")
        self.skip_next(problem)
        return None

    def skip_next(self, problem: str) -> None:
        """Go on without the next model of the start."""
        bundle = self._unbuilt.pop(0)
        self.note_failure(bundle.manifest.name, problem)

    def note_failure(self, name: str, problem: str) -> None:
        """List a model of the start as failed."""
        self.lanes.pop(lanes.LaneKey(name), None)
        self.failed[name] = problem
        self.joining.discard(name)
        _log.error("%s is not served: %s", name, problem)

    def _problem_at_start(self, bundle: Bundle) -> str | None:
        """Try a bundle in a thread without an event loop; returns why it may not be served."""
        tried = trial.try_bundle(bundle.path, self.defaults, is_closing=lambda: self._is_closed)
        try:
            asyncio.run(tried)
        except trial.StoppedError:
            return "the server stops."
        except lane_manager.LaneNotOpenedError as error:
            return str(error)
        return None

    def make_lanes(self) -> lanes.MakeLanes:
        """How an engine process opens the models that are served now."""
        return functools.partial(lanes.open_lanes, tuple(self.lanes.values()))

    def progress(self) -> dict[str, str | float] | None:
        """What is being built, and for how long; callable from any thread."""
        build = self._build
        return build.progress() if build else None

    def close(self) -> None:
        self._is_closed = True
        self._watch(self._build)

    def _watch(self, build: Build | None) -> None:
        self._build = build
        if build is not None and self._is_closed:
            build.kill()

    def open(self, bundle: Bundle, key: lanes.LaneKey) -> Opened:
        """The model, and how to open it as the lane `key`; builds what its engine needs."""
        defaults = self.defaults
        try:
            choice = factory.prepare(
                bundle,
                defaults.engine,
                num_slots=defaults.num_slots,
                build_command=BUILD_COMMAND,
                watch=self._watch,
            )
        finally:
            self._build = None
        return self.open_with(choice, bundle, key)

    def open_with(self, choice: factory.Choice, bundle: Bundle, key: lanes.LaneKey) -> Opened:
        """As `open`, with an engine that is already chosen, and without building."""
        defaults = self.defaults
        max_slots = factory.max_slots(bundle, choice.engine)
        lane = lanes.LaneOptions(
            key=key,
            bundle_path=bundle.path,
            choice=choice,
            max_slots=max_slots,
            defaults=defaults,
        )
        model = ServedModel.of(
            bundle,
            precision=choice.precision,
            num_slots=defaults.num_slots or max_slots,
            max_attempts=defaults.max_attempts,
            precision_reason=choice.reason,
            lane=key,
        )
        return model, lane
