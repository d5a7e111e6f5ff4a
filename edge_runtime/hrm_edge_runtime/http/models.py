"""Which bundles may be served and how to run them, and adding, reloading and removing models while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hrm_edge_runtime.api.errors import (
    ServiceError,
    invalid,
    needing_a_thread,
    no_answer,
    without_folders,
)
from hrm_edge_runtime.api.schema import ChangeAnswer
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES
from hrm_edge_runtime.engines import engine, factory
from hrm_edge_runtime.worker import client, lane_manager, lanes, trial

if TYPE_CHECKING:
    from hrm_edge_runtime.engines.trt.build import Build

MAX_TRIALS = 4  # processes at once, each bounded in time and memory
OPENED_WHERE_USED = "tensorrt"  # its context belongs to one thread

Shortage = lane_manager.LaneNotOpenedError  # with `lacking_bytes`
Opened = tuple[ServedModel, lanes.LaneOptions]

_log = logging.getLogger("hrm_edge_runtime.models")


class Library:
    """The bundles that may be served, and how to run them; `lanes` are those served now, by their keys."""

    def __init__(
        self, bundles: Sequence[Bundle], defaults: lanes.LaneDefaults, folders: Iterable[Path] = ()
    ) -> None:
        self._defaults = defaults
        self._named = {bundle.path.resolve() for bundle in bundles}
        self._folders = [folder.resolve() for folder in (SHIPPED_BUNDLES, *folders)]
        self._unbuilt = list(bundles)
        self._build: Build | None = None
        self._is_closed = False
        self.lanes: dict[str, lanes.LaneOptions] = {}

    def find(self, text: str) -> Path:
        """The directory of a name (its `.bundle` may be left out) or a path; refuses what the start did not allow."""
        path = Path(text)
        names = (text, f"{text}.bundle")
        candidates = (
            [path]
            if path.is_absolute()
            else [folder / name for folder in self._folders for name in names]
        )
        for candidate in candidates:
            with contextlib.suppress(
                OSError, ValueError
            ):  # a name too long for the system, or with a NUL in it
                resolved = candidate.resolve()
                is_inside = any(folder in resolved.parents for folder in self._folders)
                if (is_inside or resolved in self._named) and resolved.is_dir():
                    return resolved
        raise BundleError(
            f"{text[:200]!r} is no bundle this server may open: give a shipped one's name, or a directory below a "
            "--bundle-dir of its command line."
        )

    def build(self) -> Iterator[ServedModel]:
        """Build what the models of the start need, which can take minutes; each as it is then served."""
        while self._unbuilt:
            bundle = self._unbuilt[0]
            name = bundle.manifest.name
            model, self.lanes[name] = self.open(bundle, name)
            if bundle.path.resolve().parent != SHIPPED_BUNDLES:
                self._try_at_start(self.lanes[name])
            yield model
            del self._unbuilt[0]

    def _try_at_start(self, lane: lanes.LaneOptions) -> None:
        """Try a lane in a thread without an event loop; raises BundleError."""
        if lane.choice.engine == OPENED_WHERE_USED:  # it was tried when it was built
            return
        try:
            asyncio.run(trial.try_lane(lane, is_closing=lambda: self._is_closed))
        except lane_manager.LaneNotOpenedError as error:
            raise BundleError(f"the bundle {lane.key!r} is not served: {error}") from None

    def progress(self) -> dict[str, str | float] | None:
        """What is being built, and for how long; for any thread."""
        return build.progress() if (build := self._build) else None

    def close(self) -> None:
        self._is_closed = True
        self._watch(self._build)

    def _watch(self, build: Build | None) -> None:
        self._build = build
        if build is not None and self._is_closed:
            build.kill()

    def open(self, bundle: Bundle, key: str, choice: factory.Choice | None = None) -> Opened:
        """The model, and how to open it as the lane `key`; without a choice it builds what its engine needs."""
        defaults = self._defaults
        if choice is None:
            choice = factory.prepare(
                bundle, defaults.engine, num_slots=defaults.num_slots, watch=self._watch
            )
            self._build = None
        most = factory.max_slots(bundle, choice.engine)
        limits = {"num_slots": defaults.num_slots or most, "max_attempts": defaults.max_attempts}
        lane = lanes.LaneOptions(
            key=key, bundle_path=bundle.path, choice=choice, max_slots=most, defaults=defaults
        )
        return ServedModel.of(bundle, precision=choice.precision, lane=key, **limits), lane


def models_and_library(
    bundles: Sequence[Bundle], defaults: lanes.LaneDefaults, folders: Iterable[Path] = ()
) -> tuple[list[ServedModel], Library]:
    """The models to serve at the start, and how the engine opens them; refuses two of one name, and as `presumed`."""
    names = [bundle.manifest.name for bundle in bundles]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise BundleError(
            f"two bundles are named {doubled[0]!r}: serve one of them, or export one under another name."
        )
    library = Library(bundles, defaults, folders)
    models: list[ServedModel] = []
    for bundle, name in zip(bundles, names, strict=True):
        model, library.lanes[name] = library.open(
            bundle, name, factory.presumed(bundle, defaults.engine)
        )
        models.append(model)
    return models, library


class ModelManager:
    """Changes `models`, those served by their names in order; one change at a time, in the event loop.

    A new lane is opened while the old one works on. Then the name changes hands at once: requests that come now go to
    the new lane, the old one finishes what it admitted and closes. Whatever fails before leaves everything as it was.
    Idle models make room for one to be added, the longest unused first, if that is enough; a reload takes no other's.
    """

    def __init__(
        self, models: dict[str, ServedModel], engine_client: client.EngineClient, library: Library
    ) -> None:
        self._models = models
        self._engine_client = engine_client
        self.library = library
        self._one_at_a_time = asyncio.Lock()
        self._trials = asyncio.Semaphore(MAX_TRIALS)
        self._numbers = itertools.count(2)
        self._retirements: set[asyncio.Task[None]] = set()

    async def put(self, name: str, bundle: str) -> ChangeAnswer:
        """Serve a bundle under its name; refuses with 422 what does not open, with 507 what does not fit."""
        self._check_ready()
        with needing_a_thread():
            model, lane = await asyncio.to_thread(self._read, name, bundle)
        shortage = await self._try(
            lane
        )  # beside other changes: a graph that never ends takes a minute
        async with self._one_at_a_time:
            self._check_ready()
            evicted = await self._open_with_room(model, lane, shortage)
            before = self._models.get(name)
            self._models[name] = model  # in the place of the old one, or at the end
            self.library.lanes[lane.key] = lane
            if before is not None:
                self._retire_later(before)
            _log.info("%s %s", "reloaded" if before else "added", name)
            report = self._engine_client.lane_manager.reports.get(model.lane)
            return ChangeAnswer(
                model=model.view(report), replaced=before is not None, evicted=evicted
            )

    async def remove(self, name: str) -> None:
        """Serve a model no more; refuses with 404 one that is not here, with 409 the only one."""
        async with self._one_at_a_time:
            self._check_ready()
            model = self._models.get(name)
            if model is None:
                raise ServiceError(
                    404, "unknown-model", f"there is no model {name!r} here", "see /models"
                )
            if len(self._models) == 1:
                message, remedy = (
                    f"{name!r} is the only model here",
                    "add another first, or stop the server",
                )
                raise ServiceError(409, "last-model", message, remedy)
            del self._models[name]
            self._retire_later(model)
            _log.info("removed %s", name)

    def close(self) -> None:
        self.library.close()
        for task in self._retirements:
            task.cancel()

    def _check_ready(self) -> None:
        if (state := self._engine_client.state) != "ready":
            raise no_answer(state)

    def _read(self, name: str, text: str) -> Opened:
        try:
            bundle = Bundle.open(self.library.find(text))
            if bundle.manifest.name != name:
                message = f"the bundle is named {bundle.manifest.name!r}, not {name[:200]!r}"
                raise invalid(
                    "other-name", message, "send it to /models/ and its own name", field="bundle"
                )
            return self.library.open(
                bundle, f"{name}#{next(self._numbers)}"
            )  # a lane that closes has its key still
        except (BundleError, engine.EngineUnavailableError) as error:
            raise _refusal(422, "bad-bundle", error) from None

    async def _open_with_room(
        self, model: ServedModel, lane: lanes.LaneOptions, shortage: Shortage | None
    ) -> list[str]:
        """Open the lane; returns the names of the models that made room for it."""
        if shortage is None:
            shortage = await self._load(model, lane)
        if shortage is None:
            return []
        victims = [] if model.name in self._models else self._victims(shortage)
        if not victims:
            raise _refusal(507, "over-budget", shortage)
        for victim in victims:
            _log.warning(
                "removing %s, which nobody uses, to make room for %s", victim.name, model.name
            )
            del self._models[victim.name]
            self.library.lanes.pop(victim.lane, None)
            await self._engine_client.lane_manager.retire(victim.lane)
        shortage = await self._try(lane) or await self._load(model, lane)
        if shortage is not None:
            raise _refusal(507, "over-budget", shortage)
        return [victim.name for victim in victims]

    async def _try(self, lane: lanes.LaneOptions) -> Shortage | None:
        """Try a lane; returns what it lacks memory for, and refuses with 422 what fails otherwise."""
        if lane.choice.engine == OPENED_WHERE_USED:  # it was tried when it was built
            return None
        async with self._trials:
            return await _shortage_of(trial.try_lane(lane))

    async def _load(self, model: ServedModel, lane: lanes.LaneOptions) -> Shortage | None:
        """Open a lane in the engine beside those that run; returns and refuses as `_try`."""
        is_beside = lane.choice.engine != OPENED_WHERE_USED
        make_lane = functools.partial(lanes.open_lane, lane, keeps_figures=False)
        load = self._engine_client.lane_manager.load(
            lane.key, model.name, make_lane, beside=is_beside
        )
        return await _shortage_of(load)

    def _victims(self, shortage: Shortage) -> list[ServedModel]:
        """The idle models to remove, the longest unused first; none where all of them would not be enough."""
        lacking_bytes = shortage.lacking_bytes or 0
        by_lane = {model.lane: model for model in self._models.values()}
        chosen: list[ServedModel] = []
        for lane in self._engine_client.limits.idle():
            report = self._engine_client.lane_manager.reports.get(lane)
            if lacking_bytes > 0 and lane in by_lane and report is not None:
                chosen.append(by_lane[lane])
                lacking_bytes -= report.memory_bytes
        return chosen if lacking_bytes <= 0 else []

    def _retire_later(self, model: ServedModel) -> None:
        self.library.lanes.pop(model.lane, None)

        async def retire() -> None:
            await self._engine_client.lane_manager.retire(model.lane)
            _log.info("the lane %s is closed", model.lane)

        task = asyncio.ensure_future(retire())
        self._retirements.add(task)
        task.add_done_callback(self._retirements.discard)


async def _shortage_of(opening: Awaitable[None]) -> Shortage | None:
    """What an opening lacks memory for; refuses with 422 what fails otherwise."""
    try:
        await opening
        return None
    except lane_manager.LaneNotOpenedError as error:
        if error.lacking_bytes is None:
            raise _refusal(422, "bad-bundle", error) from None
        return error


def _refusal(status: int, reason: str, error: Exception) -> ServiceError:
    """An error's one sentence, `problem: remedy.`, as an answer."""
    message, _, remedy = without_folders(str(error)).rpartition(": ")
    return ServiceError(status, reason, message or remedy, remedy.rstrip("."), field="bundle")
