"""The step graph on TensorRT: the carry stays on the device; a segment is one CUDA graph launch.

Shapes: B slots, T tokens, N positions, D hidden width, E puzzle-vector size, V vocabulary.

- Device memory holds two carries. A segment reads one and writes the other, so they swap by
  address.
- A step over n slots runs the smallest batch bucket that holds them; nobody reads the idle rows.
  Every bucket has a context and graphs of its own, even if all buckets use one profile.
  Contexts share scratch memory because they run one at a time. Engines do not: one may have a
  segment in flight while another begins.
- In a run the next segment is launched before the host reads the last. So outputs have two places
  too, used in turn.
- Inputs are sent once, with the first segment of the next run. Later segments see no fresh slot.
- The batch sizes depend on the model alone, so every command that needs up to 16 slots builds and
  opens the same engine. A small model has one profile for all batch sizes: the builder takes a
  third of the time and the plan a quarter of the bytes, with the same kernels. A large model has a
  profile per batch size, since the narrowest profile has the best kernels.

Not run on a GPU yet: the tests run it over a stand-in for TensorRT and CUDA.
"""

# Without TensorRT the types below are unknown; `make check-trt` runs them through its bindings.
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import Manifest
from hrm_edge_runtime.engines import engine as contract
from hrm_edge_runtime.engines.engine import (
    MAX_SLOTS_CARD,
    Engine,
    EngineLostError,
    Float32,
    Int32,
    Shape,
    StepOutput,
    usual_slots,
)
from hrm_edge_runtime.engines.trt import api
from hrm_edge_runtime.engines.trt.cuda import Gpu, Shared
from hrm_edge_runtime.engines.trt.drivers import CudaError

if TYPE_CHECKING:
    import tensorrt

FLOAT_BYTES = 4
FEW_WEIGHTS = 1_000_000
BEST_ROWS = 8  # the batch size whose time the builder minimizes
WEIGHT_BYTES = {"fp16": 2, "fp32": 4, "int8": 1}

_log = logging.getLogger("hrm_edge_runtime.tensorrt")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The fewest, best and most rows of an optimization profile."""

    min_rows: int
    best_rows: int
    max_rows: int

    @classmethod
    def fixed(cls, num_rows: int) -> Profile:
        return cls(min_rows=num_rows, best_rows=num_rows, max_rows=num_rows)


def is_small(bundle: Bundle) -> bool:
    """Whether the model has few weights, judged by the size of a step graph."""
    for precision, weight_bytes in WEIGHT_BYTES.items():
        file = bundle.manifest.precisions.get(precision)
        if file is not None:
            num_weights = bundle.manifest.files[file].size_bytes // weight_bytes
            return num_weights < FEW_WEIGHTS
    return False


def slots_to_build(bundle: Bundle, num_slots: int) -> int:
    """The slots of the engine that serves `num_slots`: the usual number, 64, or `num_slots`."""
    for size in (usual_slots(bundle), MAX_SLOTS_CARD):
        if num_slots <= size:
            return size
    return num_slots


def buckets_for(num_slots: int) -> tuple[int, ...]:
    """The batch sizes that run: the powers of two below `num_slots`, and itself."""
    buckets: list[int] = []
    size = 1
    while size < num_slots:
        buckets.append(size)
        size *= 2
    return (*buckets, num_slots)


def profiles_for(bundle: Bundle, buckets: tuple[int, ...]) -> tuple[Profile, ...]:
    """One profile for all buckets of a small model, else one for each bucket."""
    if not is_small(bundle):
        return tuple(Profile.fixed(bucket) for bucket in buckets)
    most_rows = buckets[-1]
    best_rows = min(BEST_ROWS, most_rows)
    return (Profile(min_rows=1, best_rows=best_rows, max_rows=most_rows),)


class Buffers:
    """All memory of an engine of `num_rows` slots, with two places for carries and outputs.

    A segment that starts at place 0 writes its carry to place 1, and the other way round.
    """

    def __init__(
        self, gpu: Gpu, manifest: Manifest, num_rows: int, *, want_logits: bool, scratch_bytes: int
    ) -> None:
        names = (*contract.INPUTS, *contract.OUTPUTS)
        shapes = contract.shapes_of(names, manifest, num_rows)
        outputs = contract.outputs_read(want_logits)
        logits_bytes = FLOAT_BYTES * int(np.prod(shapes[contract.LOGITS]))
        self.row_shape = shapes[contract.CARRIES[0]][1:]
        self.row_bytes = FLOAT_BYTES * int(np.prod(self.row_shape))
        self.inputs = _shared(gpu, contract.FED, contract.INPUTS, shapes)
        self.outputs = [_shared(gpu, outputs, contract.OUTPUTS, shapes) for _place in range(2)]
        self.carries: list[dict[str, int]] = [{}, {}]
        for carry in self.carries:
            for name in contract.CARRIES:
                carry[name] = gpu.allocate(num_rows * self.row_bytes)
        self.scratch = gpu.allocate(scratch_bytes)
        self._none_fresh = gpu.allocate(num_rows)
        self._unread_logits = 0 if want_logits else gpu.allocate(logits_bytes)

    def addresses(self, place: int, *, sends: bool) -> dict[str, int]:
        """Every tensor's address in a segment that starts from the carry at `place`."""
        addresses = {contract.LOGITS: self._unread_logits}
        addresses |= self.inputs.addresses
        addresses |= self.outputs[place].addresses
        addresses |= self.carries[place]
        for name, address in self.carries[1 - place].items():
            addresses[f"{name}_next"] = address
        if not sends:
            addresses["fresh_B"] = self._none_fresh
        return addresses


def _shared(
    gpu: Gpu, names: Iterable[str], types: Mapping[str, Any], shapes: Mapping[str, Shape]
) -> Shared:
    return gpu.share({name: (shapes[name], types[name]) for name in names})


class TensorRTEngine(Engine):
    """A plan with one profile, or one per bucket; it opens the buckets that `num_slots` needs.

    Any failure while it runs raises EngineLostError, after which no slot's state is valid.
    """

    runs_ahead = True

    def __init__(
        self,
        plan: bytes,
        manifest: Manifest,
        *,
        num_slots: int,
        buckets: tuple[int, ...],
        num_profiles: int,
        gpu: Gpu,
        want_logits: bool = False,
    ) -> None:
        self.num_slots = num_slots
        self.seq_len = manifest.seq_len
        self._gpu = gpu
        self._logger = api.new_logger()
        engine = api.engine_from_plan(plan, self._logger)
        self._engine = engine
        self._names = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        num_needed = bisect_left(buckets, num_slots) + 1  # an engine may have more
        self._buckets = buckets[:num_needed]
        self._contexts: dict[int, tensorrt.IExecutionContext] = {}
        inputs = self._names.intersection(contract.INPUTS)
        for index, bucket in enumerate(self._buckets):
            profile = min(index, num_profiles - 1)
            self._contexts[bucket] = api.context_for(
                self._engine,
                profile=profile,
                shapes=contract.shapes_of(inputs, manifest, bucket),
                stream=gpu.stream,
            )
        scratch_bytes = api.scratch_bytes_of(self._contexts.values())
        self._buffers = Buffers(
            gpu,
            manifest,
            self._buckets[-1],
            want_logits=want_logits,
            scratch_bytes=scratch_bytes,
        )
        for context in self._contexts.values():
            context.set_device_memory(self._buffers.scratch, scratch_bytes)
        self._place = 0
        """The carry that the next segment starts from."""
        self._is_unsent = True
        self._events = [gpu.event() for _place in range(2)]
        self._launches: dict[tuple[int, int, bool], Callable[[], None]] = {}
        for bucket in self._buckets:
            for place in range(2):
                for sends in (True, False):
                    self._launches[bucket, place, sends] = self._recorded(bucket, place, sends)

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._feed(slot, tokens_BT=tokens_T, puzzle_vector_BE=puzzle_vector_E, fresh_B=True)

    def replace_tokens(self, slot: int, tokens_T: Int32) -> None:
        self._feed(slot, tokens_BT=tokens_T)

    def move(self, source: int, target: int) -> None:
        inputs = {name: array[source] for name, array in self._buffers.inputs.arrays.items()}
        self._feed(target, **inputs)
        row_bytes = self._buffers.row_bytes
        for address in self._buffers.carries[self._place].values():
            self._gpu.copy(address + source * row_bytes, address + target * row_bytes, row_bytes)

    def step(self, num_active: int) -> StepOutput:
        return next(self.run(num_active, 1))

    def run(self, num_active: int, num_segments: int) -> Iterator[StepOutput]:
        assert 0 < num_active <= self.num_slots, f"{num_active} active slots of {self.num_slots}"
        bucket = min(bucket for bucket in self._buckets if bucket >= num_active)
        sends = self._is_unsent
        self._enqueue(bucket, sends=sends)
        for num_left in reversed(range(num_segments)):
            place = 1 - self._place  # index of the segment that the host reads next
            if num_left:
                self._enqueue(bucket, sends=False)
            output = self._fetch(place, num_active)
            if sends:
                self._mark_sent(num_active)
                sends = False
            yield output

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        """Copies of `z_high_BND` and `z_low_BND` after the last step, for parity."""
        carry = self._buffers.carries[self._place]
        shape = (num_active, *self._buffers.row_shape)
        high_BND = self._gpu.read(carry["z_high_BND"], shape, np.float32)
        low_BND = self._gpu.read(carry["z_low_BND"], shape, np.float32)
        return high_BND, low_BND

    def layer_names(self) -> str:
        return api.layer_names(self._engine)

    def close(self) -> None:
        del self._launches, self._contexts, self._engine, self._buffers
        self._gpu.close()

    def _feed(self, slot: int, **values: object) -> None:
        """Write a slot's inputs. They are sent with the next segment that the host requests."""
        for name, value in values.items():
            self._buffers.inputs.arrays[name][slot] = value
        self._is_unsent = True

    def _enqueue(self, bucket: int, *, sends: bool) -> None:
        """Put one segment on the stream, with a mark behind it, and swap the carries."""
        place = self._place
        self._launches[bucket, place, sends]()
        self._gpu.record(self._events[place])
        self._place = 1 - place

    def _fetch(self, place: int, num_active: int) -> StepOutput:
        """Wait for the segment that started at `place`; returns views of its outputs."""
        self._gpu.wait_for(self._events[place])
        outputs = self._buffers.outputs[place].arrays
        return StepOutput(**{name: array[:num_active] for name, array in outputs.items()})

    def _mark_sent(self, num_active: int) -> None:
        fresh_B = self._buffers.inputs.arrays["fresh_B"]
        fresh_B[:num_active] = False
        self._is_unsent = bool(fresh_B.any())  # slots outside this batch are still fresh

    def _recorded(self, bucket: int, place: int, sends: bool) -> Callable[[], None]:
        """The launch of a bucket's segment, as a CUDA graph if the driver can record it."""
        context = self._contexts[bucket]
        addresses = self._buffers.addresses(place, sends=sends)

        def enqueue() -> None:
            for name in self._names:
                context.set_tensor_address(name, addresses[name])
            if sends:
                self._gpu.upload(self._buffers.inputs)
            if not context.execute_async_v3(self._gpu.stream):
                reason = self._logger.last_error
                raise EngineLostError(f"TensorRT failed in a segment of {bucket} slots ({reason})")
            self._gpu.download(self._buffers.outputs[place])

        enqueue()  # the first run settles TensorRT's shapes, which must not be recorded
        self._gpu.wait()
        try:
            return self._gpu.capture(enqueue)
        except (CudaError, EngineLostError) as error:
            problem = str(error)  # a log that keeps the error would keep this engine alive
            _log.warning(
                "batch %d runs without a CUDA graph, which costs time: %s", bucket, problem
            )
            return enqueue
