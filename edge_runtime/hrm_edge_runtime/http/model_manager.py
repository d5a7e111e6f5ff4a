"""Adding, reloading and removing models while the server runs, one change at a time.

A new lane is opened while the old one works on. Then the model's name changes hands at once: requests that come now go
to the new lane, those admitted before are finished by the old one, which closes after the last of them. Whatever fails
before that moment leaves everything as it was.

Where a model to be added does not fit into the memory budget, idle models make room, the longest unused first, and only
if they are enough; a reload never takes another model's room.
"""

import asyncio
import functools
import itertools
import logging

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.http.errors import ServiceError, invalid, unavailable
from hrm_edge_runtime.http.models import Library, ServedModel
from hrm_edge_runtime.http.schema import ChangeAnswer
from hrm_edge_runtime.manifest import BundleError
from hrm_edge_runtime.worker.client import EngineClient
from hrm_edge_runtime.worker.lane_manager import LaneNotOpenedError
from hrm_edge_runtime.worker.lanes import LaneOptions, open_lane

OPENED_WHERE_USED = "tensorrt"  # its context belongs to one thread

_log = logging.getLogger("hrm_edge_runtime.models")


class ModelManager:
    """Changes `models`, those served by their names in order. All of it runs in the event loop but reading bundles."""

    def __init__(self, models: dict[str, ServedModel], engine_client: EngineClient, library: Library) -> None:
        self._models = models
        self._engine_client = engine_client
        self._library = library
        self._one_at_a_time = asyncio.Lock()
        self._numbers = itertools.count(2)
        self._retirements: set[asyncio.Task[None]] = set()

    async def put(self, name: str, bundle: str) -> ChangeAnswer:
        """Serve a bundle under its name; refuses with 422 what does not open, with 507 what does not fit."""
        async with self._one_at_a_time:
            self._check_ready()
            model, lane = await asyncio.to_thread(self._read, name, bundle)
            evicted = await self._open_with_room(model, lane)
            before = self._models.get(name)
            self._models[name] = model  # in the place of the old one, or at the end
            self._library.lanes[lane.key] = lane
            if before is not None:
                self._retire_later(before)
            _log.info("%s %s", "reloaded" if before else "added", name)
            report = self._engine_client.lane_manager.reports.get(model.lane)
            return ChangeAnswer(model=model.view(report), replaced=before is not None, evicted=evicted)

    async def remove(self, name: str) -> None:
        """Serve a model no more; refuses with 404 one that is not here, with 409 the only one."""
        async with self._one_at_a_time:
            self._check_ready()
            model = self._models.get(name)
            if model is None:
                raise ServiceError(404, "unknown-model", f"there is no model {name!r} here", "see /models")
            if len(self._models) == 1:
                raise ServiceError(
                    409, "last-model", f"{name!r} is the only model here", "add another first, or stop the server"
                )
            del self._models[name]
            self._retire_later(model)
            _log.info("removed %s", name)

    def close(self) -> None:
        for task in self._retirements:
            task.cancel()

    def _check_ready(self) -> None:
        if (state := self._engine_client.state) != "ready":
            raise unavailable(state)

    def _read(self, name: str, text: str) -> tuple[ServedModel, LaneOptions]:
        try:
            bundle = Bundle.open(self._library.find(text))
            if bundle.manifest.name != name:
                raise invalid(
                    "other-name",
                    f"the bundle is named {bundle.manifest.name!r}, not {name[:200]!r}",
                    "send it to /models/ and its own name",
                    field="bundle",
                )
            keys = itertools.chain([name], (f"{name}#{number}" for number in self._numbers))
            key = next(key for key in keys if key not in self._engine_client.limits)
            return self._library.open(bundle, key)
        except (BundleError, EngineUnavailableError) as error:
            raise _refusal(422, "bad-bundle", error) from None

    async def _open_with_room(self, model: ServedModel, lane: LaneOptions) -> list[str]:
        """Open the lane; returns the names of the models that made room for it."""
        try:
            await self._open(model, lane)
            return []
        except LaneNotOpenedError as error:
            if error.lacking_bytes is None:
                raise _refusal(422, "bad-bundle", error) from None
            victims = [] if model.name in self._models else self._victims(error.lacking_bytes)
            if not victims:
                raise _refusal(507, "over-budget", error) from None
        for victim in victims:
            _log.warning("removing %s, which nobody uses, to make room for %s", victim.name, model.name)
            del self._models[victim.name]
            self._library.lanes.pop(victim.lane, None)
            await self._engine_client.lane_manager.retire(victim.lane)
        try:
            await self._open(model, lane)
        except LaneNotOpenedError as error:
            raise _refusal(507, "over-budget", error) from None
        return [victim.name for victim in victims]

    async def _open(self, model: ServedModel, lane: LaneOptions) -> None:
        await self._engine_client.lane_manager.load(
            lane.key,
            model.name,
            functools.partial(open_lane, lane, keeps_figures=False),
            beside=lane.choice.engine != OPENED_WHERE_USED,
        )

    def _victims(self, lacking_bytes: int) -> list[ServedModel]:
        """The idle models to remove, the longest unused first; none where all of them would not be enough."""
        by_lane = {model.lane: model for model in self._models.values()}
        chosen: list[ServedModel] = []
        for lane in self._engine_client.limits.idle():
            report = self._engine_client.lane_manager.reports.get(lane)
            if lacking_bytes > 0 and lane in by_lane and report is not None:
                chosen.append(by_lane[lane])
                lacking_bytes -= report.memory_bytes
        return chosen if lacking_bytes <= 0 else []

    def _retire_later(self, model: ServedModel) -> None:
        self._library.lanes.pop(model.lane, None)

        async def retire() -> None:
            await self._engine_client.lane_manager.retire(model.lane)
            _log.info("the lane %s is closed", model.lane)

        task = asyncio.ensure_future(retire())
        self._retirements.add(task)
        task.add_done_callback(self._retirements.discard)


def _refusal(status: int, reason: str, error: Exception) -> ServiceError:
    """An error's one sentence, `problem: remedy.`, as an answer."""
    message, _, remedy = str(error).rpartition(": ")
    return ServiceError(status, reason, message or str(error), remedy.rstrip("."), field="bundle")
