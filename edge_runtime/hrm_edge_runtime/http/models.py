"""Which bundles may be served, and adding, reloading and removing models at run time."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
from collections import Counter
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
from hrm_edge_runtime.http.uploads import Uploads
from hrm_edge_runtime.worker import client, lane_manager, lanes, trial

if TYPE_CHECKING:
    from hrm_edge_runtime.engines.trt.building import Build

MAX_TRIALS = 4  # processes at once, each bounded in time and memory
LOOK_AGAIN_S = 0.1  # between checks whether the engine is ready for a joining model
OPENED_WHERE_USED = "tensorrt"  # its context belongs to one thread

Shortage = lane_manager.LaneNotOpenedError  # if it has `lacking_bytes`
Opened = tuple[ServedModel, lanes.LaneOptions]

_log = logging.getLogger("hrm_edge_runtime.models")


class Library:
    """The bundles that may be served and how to run them. `lanes` holds the served ones by key."""

    def __init__(
        self,
        bundles: Sequence[Bundle],
        defaults: lanes.LaneDefaults,
        folders: Iterable[Path] = (),
        uploads: Uploads | None = None,
    ) -> None:
        self._defaults = defaults
        self._named = {bundle.path.resolve() for bundle in bundles}
        self._folders = [folder.resolve() for folder in (SHIPPED_BUNDLES, *folders)]
        if uploads is not None:
            self._folders.append(uploads.folder)
        self.uploads = uploads
        self._unbuilt = list(bundles)
        self._build: Build | None = None
        self._is_closed = False
        self.lanes: dict[str, lanes.LaneOptions] = {}
        self.failed: dict[str, str] = {}
        """Why a model of the start has no engine, by name; the others are served."""
        self.joining: set[str] = set()
        """The models that the engine started without, by name, until they are open or failed."""

    def find(self, text: str) -> Path:
        """The directory of a path or a name, with or without `.bundle`.

        Raises BundleError if the command line of the server does not allow it.
        """
        for candidate in self._candidates(text):
            with contextlib.suppress(OSError, ValueError):  # the name is too long or contains a NUL
                resolved = candidate.resolve()
                if self._is_allowed(resolved) and resolved.is_dir():
                    return resolved
        raise BundleError(
            f"{text[:200]!r} is not a bundle that this server may open: "
            "send the name of a shipped one, or a directory below a --bundle-dir of its command "
            "line."
        )

    def _candidates(self, text: str) -> Iterator[Path]:
        path = Path(text)
        if path.is_absolute():
            yield path
            return
        for folder in self._folders:
            yield folder / text
            yield folder / f"{text}.bundle"

    def _is_allowed(self, path: Path) -> bool:
        is_inside = any(folder in path.parents for folder in self._folders)
        return is_inside or path in self._named

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
            if lane.choice.engine == OPENED_WHERE_USED:
                self._let_others_join()

    def build_next(self) -> Opened | None:
        """Build the next model of the start; None if it fails."""
        bundle = self._unbuilt[0]
        name = bundle.manifest.name
        try:
            model, lane = self.open(bundle, name)
        except engine.EngineUnavailableError as error:
            is_last = len(self._unbuilt) == 1 and not self.lanes.keys() - {name}
            if self._is_closed or is_last:
                raise
            self.skip_next(str(error))
            return None
        if bundle.path.resolve().parent != SHIPPED_BUNDLES:
            self._try_at_start(lane)
        del self._unbuilt[0]
        return model, lane

    def skip_next(self, problem: str) -> None:
        """Go on without the next model of the start."""
        bundle = self._unbuilt.pop(0)
        self.note_failure(bundle.manifest.name, problem)

    def note_failure(self, name: str, problem: str) -> None:
        """List a model of the start as failed."""
        self.lanes.pop(name, None)
        self.failed[name] = problem
        self.joining.discard(name)
        _log.error("%s is not served: %s", name, problem)

    def note_joined(self, lane: lanes.LaneOptions) -> None:
        """Keep a lane that the engine has opened, so that a restarted engine opens it too."""
        self.lanes[lane.key] = lane
        self.joining.discard(lane.key)

    def _let_others_join(self) -> None:
        for bundle in self._unbuilt:
            name = bundle.manifest.name
            self.lanes.pop(name, None)
            self.joining.add(name)

    def _try_at_start(self, lane: lanes.LaneOptions) -> None:
        """Try a lane in a thread without an event loop; raises BundleError."""
        if lane.choice.engine == OPENED_WHERE_USED:  # already tried when its engine was built
            return
        try:
            asyncio.run(trial.try_lane(lane, is_closing=lambda: self._is_closed))
        except lane_manager.LaneNotOpenedError as error:
            raise BundleError(f"the bundle {lane.key!r} is not served: {error}") from None

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

    def open(self, bundle: Bundle, key: str) -> Opened:
        """The model, and how to open it as the lane `key`; builds what its engine needs."""
        defaults = self._defaults
        try:
            choice = factory.prepare(
                bundle,
                defaults.engine,
                num_slots=defaults.num_slots,
                watch=self._watch,
            )
        finally:
            self._build = None
        return self.open_with(choice, bundle, key)

    def open_with(self, choice: factory.Choice, bundle: Bundle, key: str) -> Opened:
        """As `open`, with an engine that is already chosen, and without building."""
        defaults = self._defaults
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
            lane=key,
        )
        return model, lane


def models_and_library(
    bundles: Sequence[Bundle],
    defaults: lanes.LaneDefaults,
    folders: Iterable[Path] = (),
    uploads: Uploads | None = None,
) -> tuple[list[ServedModel], Library]:
    """The models to serve at the start, and how the engine opens them.

    Raises BundleError for two bundles of one name, and what `factory.presumed` raises.
    """
    library = Library(bundles, defaults, folders, uploads)
    models: list[ServedModel] = []
    _require_different_names(bundles)
    for bundle in bundles:
        name = bundle.manifest.name
        choice = factory.presumed(bundle, defaults.engine)
        model, lane = library.open_with(choice, bundle, name)
        library.lanes[name] = lane
        models.append(model)
    return models, library


def _require_different_names(bundles: Sequence[Bundle]) -> None:
    counts = Counter(bundle.manifest.name for bundle in bundles)
    for name in sorted(counts):
        if counts[name] > 1:
            raise BundleError(
                f"two bundles are named {name!r}: serve one of them, or export one under another "
                "name."
            )


class ModelManager:
    """Changes `models`, the served ones by name in order; one change at a time, in the event loop.

    It opens a new lane while the old one keeps working. Then it switches the name: new requests go
    to the new lane. The old one finishes what it admitted and closes. A failure before the switch
    changes nothing. To make room for a new model, it closes idle models, the longest unused first,
    if that is enough. A reload takes no room from other models.
    """

    def __init__(
        self,
        models: dict[str, ServedModel],
        engine_client: client.EngineClient,
        library: Library,
    ) -> None:
        self._models = models
        self._engine_client = engine_client
        self.library = library
        self._one_at_a_time = asyncio.Lock()
        self._trials = asyncio.Semaphore(MAX_TRIALS)
        self._numbers = itertools.count(2)
        self._retirements: set[asyncio.Task[None]] = set()
        self._joining: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open the models that the engine starts without, each as soon as it is built."""
        self._joining = asyncio.create_task(self._join_all(), name="models-joining")

    async def put(self, name: str, bundle: str) -> ChangeAnswer:
        """Serve a bundle under its name.

        Rejects a bundle that does not open with 422, and one that does not fit with 507.
        """
        self._check_ready()
        with needing_a_thread():
            model, lane = await asyncio.to_thread(self._read, name, bundle)
        # Trials may overlap, because the trial of a graph that never ends takes a minute.
        shortage = await self._try(lane)
        async with self._one_at_a_time:
            self._check_ready()
            evicted = await self._open_with_room(model, lane, shortage)
            before = self._models.get(name)
            self._models[name] = model  # in the place of the old one, or at the end
            self.library.lanes[lane.key] = lane
            self.library.failed.pop(name, None)
            if before is None:
                _log.info("added %s", name)
            else:
                self._retire_later(before)
                _log.info("reloaded %s", name)
            report = self._engine_client.lane_manager.reports.get(model.lane)
            view = model.view(report)
            return ChangeAnswer(model=view, replaced=before is not None, evicted=evicted)

    async def remove(self, name: str) -> None:
        """Stop serving a model; rejects an unknown one with 404 and the only one with 409."""
        async with self._one_at_a_time:
            self._check_ready()
            model = self._models.get(name)
            if model is None:
                message = f"there is no model {name!r} here"
                raise ServiceError(404, "unknown-model", message, "see /models")
            served = [one for one in self._models if one not in self.library.failed]
            if served == [name]:
                message = f"{name!r} is the only model here"
                remedy = "add another first, or stop the server"
                raise ServiceError(409, "last-model", message, remedy)
            del self._models[name]
            self.library.failed.pop(name, None)
            self._retire_later(model)
            _log.info("removed %s", name)

    def close(self) -> None:
        self.library.close()
        if self._joining is not None:
            self._joining.cancel()
        for task in self._retirements:
            task.cancel()

    async def _join_all(self) -> None:
        await self._engine_is_ready()
        while self.library.joining:
            num_models = len(self._models)
            num_ready = num_models - len(self.library.joining) - len(self.library.failed)
            _log.info("serving %d of %d models", num_ready, num_models)
            await self._join_next()

    async def _join_next(self) -> None:
        """Build and open the next model; if that fails, the model is listed with the reason."""
        try:
            opened = await asyncio.to_thread(self.library.build_next)
        except (OSError, ValueError) as error:
            self.library.skip_next(str(error))
            return
        if opened is None:
            return
        model, lane = opened
        async with self._one_at_a_time:
            await self._engine_is_ready()
            problem = await self._problem_of_loading(model, lane)
            if problem is None:
                self._models[model.name] = model
                self.library.note_joined(lane)
            else:
                self.library.note_failure(model.name, problem)

    async def _problem_of_loading(self, model: ServedModel, lane: lanes.LaneOptions) -> str | None:
        """Open the lane in the engine; returns the reason if that fails."""
        try:
            # other lanes pause while a TensorRT lane opens, so its figures are right
            shortage = await self._load(model, lane, keeps_figures=True)
        except ServiceError as error:
            return f"{error.detail.message}: {error.detail.remedy}."
        except client.NoAnswerError:
            return "the engine died while it opened the model: see the log."
        return str(shortage) if shortage else None

    async def _engine_is_ready(self) -> None:
        while self._engine_client.state != "ready":
            await asyncio.sleep(LOOK_AGAIN_S)

    def _check_ready(self) -> None:
        state = self._engine_client.state
        if state != "ready":
            raise no_answer(state)
        if self.library.joining:
            raise no_answer("partial")

    def _read(self, name: str, text: str) -> Opened:
        try:
            bundle = Bundle.open(self.library.find(text))
            if bundle.manifest.name != name:
                message = f"the bundle is named {bundle.manifest.name!r}, not {name[:200]!r}"
                remedy = "send it to /models/ and its own name"
                raise invalid("other-name", message, remedy, field="bundle")
            key = f"{name}#{next(self._numbers)}"  # a lane that is closing still has its key
            return self.library.open(bundle, key)
        except (BundleError, engine.EngineUnavailableError) as error:
            raise _refusal(422, "bad-bundle", error) from None

    async def _open_with_room(
        self,
        model: ServedModel,
        lane: lanes.LaneOptions,
        shortage: Shortage | None,
    ) -> list[str]:
        """Open the lane; returns the names of the models that made room for it."""
        if shortage is None:
            shortage = await self._load(model, lane)
        if shortage is None:
            return []
        is_reload = model.name in self._models
        victims = [] if is_reload else self._victims(shortage)
        if not victims:
            raise _refusal(507, "over-budget", shortage)
        for victim in victims:
            _log.warning("removing %s, which is idle, to make room for %s", victim.name, model.name)
            del self._models[victim.name]
            self.library.lanes.pop(victim.lane, None)
            await self._engine_client.lane_manager.retire(victim.lane)
        shortage = await self._try(lane)
        if shortage is None:
            shortage = await self._load(model, lane)
        if shortage is not None:
            raise _refusal(507, "over-budget", shortage)
        return [victim.name for victim in victims]

    async def _try(self, lane: lanes.LaneOptions) -> Shortage | None:
        """Try a lane; returns a lack of memory and rejects other failures with 422."""
        if lane.choice.engine == OPENED_WHERE_USED:  # already tried when its engine was built
            return None
        async with self._trials:
            return await _shortage_of(trial.try_lane(lane))

    async def _load(
        self, model: ServedModel, lane: lanes.LaneOptions, *, keeps_figures: bool = False
    ) -> Shortage | None:
        """Open a lane in the engine beside those that run; fails as `_try` does."""
        is_beside = lane.choice.engine != OPENED_WHERE_USED
        make_lane = functools.partial(lanes.open_lane, lane, keeps_figures=keeps_figures)
        manager = self._engine_client.lane_manager
        load = manager.load(lane.key, model.name, make_lane, beside=is_beside)
        return await _shortage_of(load)

    def _victims(self, shortage: Shortage) -> list[ServedModel]:
        """The idle models to remove, the longest unused first; none if that is not enough."""
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
    """Await an opening; returns a lack of memory and rejects other failures with 422."""
    try:
        await opening
    except lane_manager.LaneNotOpenedError as error:
        if error.lacking_bytes is None:
            raise _refusal(422, "bad-bundle", error) from None
        return error
    return None


def _refusal(status: int, reason: str, error: Exception) -> ServiceError:
    """The sentence of an error, `problem: remedy.`, as an answer."""
    message, _, remedy = without_folders(str(error)).rpartition(": ")
    return ServiceError(status, reason, message or remedy, remedy.rstrip("."), field="bundle")
