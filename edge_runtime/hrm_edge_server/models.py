"""Adding, reloading and removing models at run time."""

import asyncio
import functools
import itertools
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from hrm_edge_runtime.api.errors import ServiceError, bad_bundle, invalid, no_answer
from hrm_edge_runtime.api.schema import ChangeAnswer
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.factory import OPENED_WHERE_USED
from hrm_edge_runtime.worker import client, lane_manager, lanes
from hrm_edge_server.library import Library, Opened
from hrm_host.memory import resident_bytes
from hrm_parity import trial

LOOK_AGAIN_S = 0.1  # between checks whether the engine is ready for a joining model

_log = logging.getLogger("hrm_edge_runtime.models")


class ModelManager:
    """Changes `models`, the served ones by name in order; one change at a time, in the event loop.

    It opens a new lane while the old one keeps working. Then it switches the name: new requests go
    to the new lane. The old one finishes what it admitted and closes. A failure before the switch
    changes nothing.
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
        self._trials = asyncio.Lock()  # each may take all memory that the engine leaves
        self._numbers = itertools.count(2)
        self._retirements: set[asyncio.Task[None]] = set()
        self._joining: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open the models that the engine starts without, each as soon as it is built."""
        self._joining = asyncio.create_task(self._join_all(), name="models-joining")

    async def put(self, name: str, path: Path, commit: Callable[[], None]) -> ChangeAnswer:
        """Serve a bundle under its name; calls `commit` in the turn that switches to it.

        Rejects a bundle that does not open with 422, and one that does not fit with 507.
        """
        self._check_ready()
        async with self._trials:
            await self._try(path)
        model, lane = await asyncio.to_thread(self._read, name, path)
        async with self._one_at_a_time:
            self._check_ready()
            await _opened(self._load(lane))
            try:
                commit()
            except BaseException:
                self._close_later(lane.key)
                raise
            before = self._models.get(name)
            self._models[name] = model  # in the place of the old one, or at the end
            self.library.lanes[lane.key] = lane
            self.library.failed.pop(name, None)
            if before is None:
                _log.info("added %s", name)
            else:
                self._close_later(before.lane)
                _log.info("reloaded %s", name)
            report = self._engine_client.lane_manager.reports.get(model.lane)
            view = model.view(report)
            return ChangeAnswer(model=view, replaced=before is not None)

    async def remove(self, name: str) -> None:
        """Stop serving a model, and remove its upload.

        Rejects an unknown one with 404 and the only one with 409.
        """
        async with self._one_at_a_time:
            self._check_ready()
            model = self._models.get(name)
            if model is None and name not in self.library.failed:
                raise unknown_model(name)
            served = self._models.keys() - self.library.failed.keys()
            if served == {name}:
                message = f"{name!r} is the only model here"
                remedy = "add another first, or stop the server"
                raise ServiceError(409, "last-model", message, remedy)
            if self.library.uploads is not None:
                self.library.uploads.forget(name)
            self._models.pop(name, None)
            self.library.failed.pop(name, None)
            if model is not None:
                self._close_later(model.lane)
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
            try:
                # other lanes pause while a TensorRT lane opens, so its figures are right
                await self._load(lane, keeps_figures=True)
            except lane_manager.LaneNotOpenedError as error:
                self.library.note_failure(model.name, str(error))
            except client.NoAnswerError:
                problem = "the engine died while it opened the model: see the log."
                self.library.note_failure(model.name, problem)
            else:
                self._models[model.name] = model
                self.library.lanes[lane.key] = lane  # a restarted engine opens it too
                self.library.joining.discard(model.name)

    async def _engine_is_ready(self) -> None:
        while self._engine_client.state != "ready":
            await asyncio.sleep(LOOK_AGAIN_S)

    def _check_ready(self) -> None:
        state = self._engine_client.state
        if state != "ready":
            raise no_answer(state)
        if self.library.joining:
            raise no_answer("partial")

    def _read(self, name: str, path: Path) -> Opened:
        try:
            bundle = Bundle.open(path)
            if bundle.manifest.name != name:
                message = f"the bundle is named {bundle.manifest.name!r}, not {name[:200]!r}"
                remedy = "send it to /models/ and its own name"
                raise invalid("other-name", message, remedy, field="bundle")
            # a lane that is closing still has its key
            key = lanes.LaneKey(name, next(self._numbers))
            return self.library.open(bundle, key)
        except (BundleError, EngineUnavailableError) as error:
            raise bad_bundle(error) from None

    async def _try(self, path: Path) -> None:
        """Try a bundle in a process of its own; rejects what fails there."""
        engine_bytes = resident_bytes(self._engine_client.process.pid)
        tried = trial.try_bundle(
            path,
            self.library.defaults,
            engine_bytes=engine_bytes,
            is_closing=lambda: self._engine_client.state == "draining",
        )
        try:
            await _opened(tried)
        except trial.StoppedError:
            raise no_answer("draining") from None

    async def _load(self, lane: lanes.LaneOptions, *, keeps_figures: bool = False) -> None:
        """Open a lane in the engine beside those that run."""
        is_beside = lane.choice.engine != OPENED_WHERE_USED
        make_lane = functools.partial(lanes.open_lane, lane, keeps_figures=keeps_figures)
        manager = self._engine_client.lane_manager
        await manager.load(lane.key, make_lane, beside=is_beside)

    def _close_later(self, lane: lanes.LaneKey) -> None:
        """Close a lane after the last of its requests."""
        self.library.lanes.pop(lane, None)

        async def retire() -> None:
            await self._engine_client.lane_manager.retire(lane)
            _log.info("%s is closed", lane)

        task = asyncio.ensure_future(retire())
        self._retirements.add(task)
        task.add_done_callback(self._retirements.discard)


def unknown_model(name: str) -> ServiceError:
    return ServiceError(404, "unknown-model", f"there is no model {name!r} here", "see /models")


async def _opened(opening: Awaitable[None]) -> None:
    """Await an opening; rejects a lack of memory with 507 and other failures with 422."""
    try:
        await opening
    except lane_manager.LaneNotOpenedError as error:
        raise bad_bundle(error, is_over_budget=error.is_over_budget) from None
