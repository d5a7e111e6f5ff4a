"""The step graph on TensorRT: the carry never leaves the device, and a segment is one launch of a CUDA graph.

Shapes: B slots, T tokens, N positions, D hidden width, E puzzle-vector size, V vocabulary. Two carries lie in device
memory and change places by address. A plan has one profile for each batch bucket: a step over n slots runs the smallest
bucket that holds them, and nobody reads the idle rows. Contexts share scratch memory, since they run one at a time.

In a run the next segment is launched before the host has looked at the last: answers have two places in turn, as the
carry does. What the host wrote is sent once, with the first segment of the run after it; in all others nobody is fresh.
Not run on a GPU yet: the tests run it over a stand-in for TensorRT and CUDA.
"""

# Without TensorRT or its stubs the types below are unknown: `make check-rtx` checks them against tensorrt-stubs.
# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from hrm_edge_runtime.contract.arrays import Float32, Int32
from hrm_edge_runtime.contract.manifest import Manifest
from hrm_edge_runtime.engines import engine as contract
from hrm_edge_runtime.engines.engine import (
    Engine,
    EngineLostError,
    EngineUnavailableError,
    StepOutput,
)
from hrm_edge_runtime.engines.trt import api
from hrm_edge_runtime.engines.trt.cuda import CaptureError, Gpu

if TYPE_CHECKING:
    import tensorrt

_log = logging.getLogger("hrm_edge_runtime.tensorrt")


class TensorRTEngine(Engine):
    """A plan with a profile for each of `buckets`; those are opened that `num_slots` fill. A failure loses all."""

    runs_ahead = True

    def __init__(
        self,
        plan: bytes,
        manifest: Manifest,
        *,
        num_slots: int,
        buckets: tuple[int, ...],
        gpu: Gpu,
        want_logits: bool = False,
    ) -> None:
        self.num_slots = num_slots
        self.seq_len = manifest.seq_len
        self._gpu = gpu
        self._manifest = manifest
        below = (0, *buckets[:-1])
        self._buckets = tuple(bucket for less, bucket in zip(below, buckets, strict=True) if less < num_slots)
        self._wants_logits = want_logits
        self._last_error = api.LastError()
        self._engine = self._open(plan, num_profiles=len(buckets))
        self._allocate(self._buckets[-1])
        self._contexts: dict[int, tensorrt.IExecutionContext] = {}
        for profile, bucket in enumerate(self._buckets):
            shapes = contract.shapes_of(self._names.intersection(contract.INPUTS), manifest, bucket)
            memory = {"scratch": self._scratch, "stream": gpu.stream}
            self._contexts[bucket] = api.context_for(self._engine, profile=profile, shapes=shapes, **memory)
        self._current = 0
        self._events = [self._gpu.event() for _parity in range(2)]
        kinds = itertools.product(self._buckets, range(2), (True, False))
        self._launches = {kind: self._recorded(*kind) for kind in kinds}

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._feed(slot, tokens_BT=tokens_T, puzzle_vector_BE=puzzle_vector_E, fresh_B=True)

    def retell(self, slot: int, tokens_T: Int32) -> None:
        self._feed(slot, tokens_BT=tokens_T)

    def _feed(self, slot: int, **values: object) -> None:
        """The only way to what the GPU is fed: it is sent once, with the next segment that the host asks for."""
        for name, value in values.items():
            self._fed.arrays[name][slot] = value
        self._is_unsent = True

    def move(self, source: int, target: int) -> None:
        self._feed(target, **{name: array[source] for name, array in self._fed.arrays.items()})
        for address in self._carries[self._current].values():
            self._gpu.copy(address + source * self._row_bytes, address + target * self._row_bytes, self._row_bytes)

    def step(self, num_active: int) -> StepOutput:
        return next(self.run(num_active, 1))

    def run(self, num_active: int, num_segments: int) -> Iterator[StepOutput]:
        assert 0 < num_active <= self.num_slots, f"{num_active} active slots of {self.num_slots}"
        bucket = next(bucket for bucket in self._buckets if bucket >= num_active)
        is_sent = self._is_unsent
        self._launch(bucket, sends=is_sent)
        for num_left in reversed(range(num_segments)):
            parity = 1 - self._current  # of the segment that the host sees next
            if num_left:
                self._launch(bucket, sends=False)
            self._gpu.wait_for(self._events[parity])
            if is_sent:
                fresh_B = self._fed.arrays["fresh_B"]
                fresh_B[:num_active] = False
                self._is_unsent, is_sent = bool(fresh_B.any()), False  # who sat out is still to begin
            yield StepOutput(**{name: array[:num_active] for name, array in self._read[parity].arrays.items()})

    def _launch(self, bucket: int, *, sends: bool) -> None:
        parity = self._current
        self._launches[bucket, parity, sends]()
        self._gpu.record(self._events[parity])
        self._current = 1 - parity

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        """`z_high_BND` and `z_low_BND` after the last step, for parity; copies."""
        now, shape = self._carries[self._current], (num_active, *self._row_shape)
        high, low = (self._gpu.read(now[name], shape, np.float32) for name in contract.CARRIES)
        return high, low

    def layer_names(self) -> str:
        return api.layer_names(self._engine)

    def close(self) -> None:
        del self._launches, self._contexts, self._engine, self._fed, self._read
        self._gpu.close()

    def _open(self, plan: bytes, num_profiles: int) -> tensorrt.ICudaEngine:
        version = api.version()
        engine = api.engine_from_plan(api.logger_for(self._last_error), plan)
        if engine is None:
            raise EngineUnavailableError(
                f"TensorRT {version} does not take this engine ({self._last_error.text}): build it again."
            )
        self._names = names = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        due = {*contract.INPUTS, *contract.OUTPUTS}
        unused = set[str]() if self._manifest.puzzle_vector_size else {"puzzle_vector_BE"}  # TensorRT may leave it out
        if not due - unused <= names <= due or engine.num_optimization_profiles != num_profiles:
            raise EngineUnavailableError(
                f"the engine has tensors {sorted(names)} and {engine.num_optimization_profiles} profiles where "
                f"{sorted(due)} and {num_profiles} are due: build it again."
            )
        return engine

    def _allocate(self, num_rows: int) -> None:
        shapes = contract.shapes_of((*contract.INPUTS, *contract.OUTPUTS), self._manifest, num_rows)
        outputs = (*contract.ANSWERS, contract.LOGITS) if self._wants_logits else contract.ANSWERS
        self._fed = self._gpu.share({name: (shapes[name], contract.INPUTS[name]) for name in contract.FED})
        self._is_unsent = True
        self._read = [
            self._gpu.share({name: (shapes[name], contract.OUTPUTS[name]) for name in outputs}) for _parity in range(2)
        ]
        self._none_fresh = self._gpu.allocate(num_rows)
        self._unread = 0 if self._wants_logits else self._gpu.allocate(int(np.prod(shapes[contract.LOGITS])) * 4)
        self._row_shape = shapes[contract.CARRIES[0]][1:]
        self._row_bytes = int(np.prod(self._row_shape)) * 4
        self._carries = [
            {name: self._gpu.allocate(num_rows * self._row_bytes) for name in contract.CARRIES} for _parity in range(2)
        ]
        self._scratch = self._gpu.allocate(self._engine.device_memory_size_v2)

    def _recorded(self, bucket: int, parity: int, sends: bool) -> Callable[[], None]:
        """The launch of a bucket's segment from one carry to the other, recorded where the driver can."""
        context, before, after = self._contexts[bucket], self._carries[parity], self._carries[1 - parity]
        addresses = {
            contract.LOGITS: self._unread,
            **self._fed.addresses,
            **self._read[parity].addresses,
            **({} if sends else {"fresh_B": self._none_fresh}),
            **before,
            **{f"{name}_next": address for name, address in after.items()},
        }

        def enqueue() -> None:
            for name in self._names:
                context.set_tensor_address(name, addresses[name])
            if sends:
                self._gpu.upload(self._fed)
            if not context.execute_async_v3(self._gpu.stream):
                raise EngineLostError(f"TensorRT does not run a segment of {bucket} slots ({self._last_error.text})")
            self._gpu.download(self._read[parity])

        enqueue()  # TensorRT settles its shapes in a first run, which must not be recorded
        self._gpu.wait()
        try:
            return self._gpu.capture(enqueue)
        except CaptureError as error:
            _log.warning("batch %d runs without a CUDA graph, which costs time: %s", bucket, error)
            return enqueue
