"""What a device can do, step by step; `hrm-doctor --device` runs this as a process of its own and keeps what it said.

    python3 -m hrm_edge_runtime.engines.trt.check [BUNDLE]

One JSON line when a step begins and one when it ends, so that even a crash says where. Builds engines of each precision
for one puzzle at a time, minutes the first time. On an H100 it ran up to the CUDA graph, not with TensorRT's engines.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.engine import EngineLostError
from hrm_edge_runtime.engines.factory import choose, engine_for, prepare
from hrm_edge_runtime.engines.trt import api, cache
from hrm_edge_runtime.engines.trt.cuda import Gpu, look

NUM_NUMBERS, NUM_LAUNCHES = 1024, 200
RUN_LENGTHS, NUM_SEGMENTS = (1, 2, 4, 8), 64


def steps(bundle: Bundle) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each step by name; it returns what it found and raises what is wrong."""
    yield "TensorRT", api.version
    yield "CUDA", lambda: asdict(look())
    yield "memory that both sides see, and a CUDA graph", launch_us
    for precision in bundle.manifest.precisions:
        yield f"{bundle.manifest.name} in {precision}", partial(segment, bundle, precision)
    yield "segments ahead of the host", partial(runs, bundle)


def launch_us() -> dict[str, float]:
    """The host's median time to launch a recorded copy and wait for it, after the copy was right."""
    with closing(Gpu()) as gpu:
        shared, there = gpu.share({"numbers": ((NUM_NUMBERS,), np.float32)}), gpu.allocate(4 * NUM_NUMBERS)
        shared.arrays["numbers"][:] = np.arange(NUM_NUMBERS)

        def work() -> None:
            gpu.upload(shared)
            gpu.copy(shared.address, there, 4 * NUM_NUMBERS)

        launch, times_s = gpu.capture(work), list[float]()
        for _ in range(NUM_LAUNCHES):
            began_s = time.perf_counter()
            launch()
            gpu.wait()
            times_s.append(time.perf_counter() - began_s)
        if (gpu.read(there, (NUM_NUMBERS,), np.float32) != shared.arrays["numbers"]).any():
            raise EngineLostError("the GPU does not see what the host wrote, so no answer from it can be trusted")
    return {"launch_and_wait_us": round(1e6 * float(np.median(times_s)), 1)}


def segment(bundle: Bundle, precision: str) -> dict[str, Any]:
    """The time of a segment for one puzzle; refuses an engine that breaks the golden traces."""
    prepare(bundle, f"tensorrt:{precision}", num_slots=1, to_judge=True)
    key = cache.EngineKey.of(bundle, cache.this_machine(), precision=precision, num_slots=1)
    page, _ = cache.read_plan(bundle, key)
    if page.breaks:
        raise ValueError(page.breaks[0])
    return {"step_ms": page.step_ms, "build_seconds": page.build_seconds, "fused_attention": page.fused_attention}


def runs(bundle: Bundle) -> dict[str, Any]:
    """The time of a segment in runs of 1, 2, 4 and 8; refuses a run that says otherwise than single segments."""
    choice, golden, ms, single = choose(bundle, "tensorrt"), bundle.golden(), dict[int, float](), b""
    with closing(engine_for(bundle, engine=str(choice), num_slots=1)) as engine:
        for length in RUN_LENGTHS:
            engine.load(0, golden.tokens_BT[0], bundle.puzzle_table[golden.puzzle_ids_B[0]])
            said, began_s = b"", time.perf_counter()
            for _ in range(NUM_SEGMENTS // length):
                for one in engine.run(1, length):
                    said += one.answer_BT.tobytes() + one.halt_margin_B.tobytes()
            ms[length] = round(1e3 * (time.perf_counter() - began_s) / NUM_SEGMENTS, 4)
            single = single or said
            if said != single:
                raise EngineLostError(f"a run of {length} segments says otherwise than single segments")
    return {"engine": str(choice), "ms_a_segment": ms}


def main(arguments: list[str]) -> None:
    for name, step in steps(Bundle.open(find_bundle(*arguments))):
        print(json.dumps({"step": name, "level": "begun"}), flush=True)
        began_s = time.monotonic()
        try:
            level, found = "ok", step()
        except Exception as error:  # whatever a device does wrong, the next step may still tell something
            level, found = "fail", str(error)
        seconds = round(time.monotonic() - began_s, 2)
        print("\n" + json.dumps({"step": name, "level": level, "found": found, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
