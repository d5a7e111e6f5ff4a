"""What a device can do, step by step; `hrm-doctor --device` and the acceptance call `try_device`.

    python3 -m hrm_parity.device

Prints one JSON line when a step begins and one when it ends, so that even a crash shows its step.
Builds an engine of each precision for one puzzle at a time, which takes minutes the first time. On
an H100 it has run up to the CUDA graph, but not with TensorRT's engines.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import open_bundle
from hrm_edge_runtime.engines.engine import Engine, EngineLostError
from hrm_edge_runtime.engines.factory import choose, engine_for, prepare
from hrm_edge_runtime.engines.trt import api, cache
from hrm_edge_runtime.engines.trt.cuda import Gpu, look
from hrm_parity import BUILD_COMMAND

NUM_NUMBERS = 1024  # float32 numbers that the recorded copy moves
NUM_LAUNCHES = 200
RUN_LENGTHS = (1, 2, 4, 8)
NUM_SEGMENTS = 64

Step = dict[str, Any]


def try_device() -> list[Step]:
    """Run all steps in a process of their own, because a driver can crash it.

    Each step has `step`, `level` ("ok" or "fail") and `found`.
    """
    command = [sys.executable, "-m", "hrm_parity.device"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    steps: dict[str, Step] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"step"'):  # other lines come from libraries
            step = json.loads(line)
            steps[step["step"]] = step
    for step in steps.values():
        if step["level"] == "begun":
            step["level"] = "fail"
            step["found"] = f"the process ended here with status {done.returncode}"
    if not steps:
        return [{"step": "start", "level": "fail", "found": f"status {done.returncode}"}]
    return list(steps.values())


def steps_on(bundle: Bundle) -> Iterator[tuple[str, Callable[[], object]]]:
    """The steps by name; each is a function that returns what it found, or raises."""
    yield "TensorRT", api.version
    yield "CUDA", lambda: look()._asdict()
    yield "memory that both sides see, and a CUDA graph", launch_us
    for precision in bundle.manifest.precisions:
        yield f"{bundle.manifest.name} in {precision}", partial(segment, bundle, precision)
    yield "segments ahead of the host", partial(runs, bundle)


def launch_us() -> dict[str, float]:
    """The host's median time to launch a recorded copy and wait for it; checks the copy first."""
    num_bytes = 4 * NUM_NUMBERS
    times_s: list[float] = []
    with closing(Gpu()) as gpu:
        shared = gpu.share({"numbers": ((NUM_NUMBERS,), np.float32)})
        copy = gpu.allocate(num_bytes)
        shared.arrays["numbers"][:] = np.arange(NUM_NUMBERS)

        def work() -> None:
            gpu.upload(shared)
            gpu.copy(shared.address, copy, num_bytes)

        launch = gpu.capture(work)
        for _ in range(NUM_LAUNCHES):
            began_s = time.perf_counter()
            launch()
            gpu.wait()
            times_s.append(time.perf_counter() - began_s)
        copied = gpu.read(copy, (NUM_NUMBERS,), np.float32)
        if (copied != shared.arrays["numbers"]).any():
            raise EngineLostError(
                "the GPU does not see what the host wrote: do not trust its answers"
            )
    median_us = 1e6 * float(np.median(times_s))
    return {"launch_and_wait_us": round(median_us, 1)}


def segment(bundle: Bundle, precision: str) -> dict[str, Any]:
    """The time of a segment for one puzzle; raises ValueError if the engine breaks parity."""
    prepare(
        bundle,
        f"tensorrt:{precision}",
        num_slots=1,
        build_command=BUILD_COMMAND,
        to_judge=True,
    )
    key = cache.EngineKey.of(bundle, cache.this_machine(), precision=precision, num_slots=1)
    page, _ = cache.read_plan(bundle, key)
    if page.breaks:
        raise ValueError(page.breaks[0])
    return page.model_dump(include={"step_ms", "build_seconds", "fused_attention"})


def runs(bundle: Bundle) -> dict[str, Any]:
    """The time of a segment in runs of each length; raises EngineLostError if outputs differ."""
    choice = choose(bundle, "tensorrt")
    golden = bundle.golden()
    puzzle_vector_E = bundle.puzzle_table[golden.puzzle_ids_B[0]]
    segment_ms: dict[int, float] = {}
    expected = b""
    with closing(engine_for(bundle, engine=str(choice), num_slots=1)) as engine:
        for length in RUN_LENGTHS:
            engine.load(0, golden.tokens_BT[0], puzzle_vector_E)
            began_s = time.perf_counter()
            outputs = _outputs(engine, length)
            elapsed_s = time.perf_counter() - began_s
            segment_ms[length] = round(1000 * elapsed_s / NUM_SEGMENTS, 4)
            expected = expected or outputs
            if outputs != expected:
                raise EngineLostError(f"a run of {length} segments differs from single segments")
    return {"engine": str(choice), "ms_a_segment": segment_ms}


def _outputs(engine: Engine, run_length: int) -> bytes:
    """Answers and margins of `NUM_SEGMENTS` segments, in runs of this length."""
    outputs = b""
    for _ in range(NUM_SEGMENTS // run_length):
        for output in engine.run(1, run_length):
            outputs += output.answer_BT.tobytes() + output.halt_margin_B.tobytes()
    return outputs


def main() -> None:
    for name, step in steps_on(open_bundle()):
        print(json.dumps({"step": name, "level": "begun"}), flush=True)
        began_s = time.monotonic()
        level = "ok"
        try:
            found = step()
        except Exception as error:  # a broken device may raise anything; later steps go on
            found = str(error)
            level = "fail"
        seconds = round(time.monotonic() - began_s, 2)
        message = {"step": name, "level": level, "found": found, "seconds": seconds}
        print("\n" + json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
