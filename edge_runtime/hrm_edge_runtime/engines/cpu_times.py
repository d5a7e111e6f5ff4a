"""Times of a segment by precision on this machine's CPU: `auto` runs the fastest.

`hrm-export` and `hrm models --measure` record them. INT8 halves the time of one model and doubles
that of another, depending on the CPU. So the times are in the user's cache and never in a bundle.
"""

import contextlib
import hashlib
import math
import time
from contextlib import ExitStack, closing
from pathlib import Path

from pydantic import PositiveFloat, TypeAdapter

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.engine import Engine, load_blanks, step_seconds
from hrm_host import atomic, machine

GAIN = 1.1  # a lower precision costs solves, so it must be this much faster than float32
MEASURING_S = 0.2  # seconds of measuring per precision
MIN_ROUNDS = 3
FOLDER = "precisions"  # in the user's cache, with a file for each bundle
MAX_FILE_BYTES = 64 * 1024

TimesMs = dict[str, float]

_ENTRIES = TypeAdapter(dict[str, dict[str, PositiveFloat]])


def measure(bundle: Bundle) -> TimesMs:
    """Time a segment of one puzzle in every precision and keep the times.

    The precisions take turns, so other work slows them alike; each time is a minimum.
    """
    from hrm_edge_runtime.engines.onnx import engine_from_bundle

    engines: dict[str, Engine] = {}
    with ExitStack() as opened:
        for precision in bundle.manifest.precisions:
            engine = engine_from_bundle(bundle, precision=precision, num_slots=1)
            opened.enter_context(closing(engine))
            load_blanks(engine, bundle.puzzle_table[0])
            engine.step(1)  # the first step allocates memory
            engines[precision] = engine
        times_ms = _in_turns(engines)
    _keep(bundle, times_ms)
    return times_ms


def kept(bundle: Bundle) -> TimesMs:
    """The times that were measured on this machine; empty if there are none."""
    return _entries(_file_of(bundle)).get(machine.machine_name(), {})


def fastest(bundle: Bundle) -> str | None:
    """The decided precision that runs fastest here, by at least `GAIN`; None without times."""
    times_ms = kept(bundle)
    if "fp32" not in times_ms:
        return None
    cost_ms = {"fp32": times_ms["fp32"]}
    for precision in bundle.manifest.decided:
        if precision in times_ms and precision != "fp32":
            cost_ms[precision] = GAIN * times_ms[precision]
    return min(cost_ms, key=cost_ms.__getitem__)


def _in_turns(engines: dict[str, Engine]) -> TimesMs:
    times_ms = dict.fromkeys(engines, math.inf)
    end_s = time.monotonic() + MEASURING_S * len(engines)
    num_rounds = 0
    while num_rounds < MIN_ROUNDS or time.monotonic() < end_s:
        for precision, engine in engines.items():
            step_ms = 1000 * step_seconds(engine, 1)
            times_ms[precision] = min(times_ms[precision], step_ms)
        num_rounds += 1
    return times_ms


def _file_of(bundle: Bundle) -> Path:
    digest = hashlib.sha256()
    for precision in bundle.manifest.precisions:
        graph = bundle.graph_path(precision, device="cpu")
        digest.update(bundle.manifest.files[graph.name].sha256.encode())
    return machine.cache_folder() / FOLDER / f"{digest.hexdigest()}.json"


def _keep(bundle: Bundle, times_ms: TimesMs) -> None:
    """Write the times; if the cache cannot be written, they are lost."""
    file = _file_of(bundle)
    entries = _entries(file)
    entries[machine.machine_name()] = times_ms
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(file, _ENTRIES.dump_json(entries, indent=1) + b"\n")


def _entries(file: Path) -> dict[str, TimesMs]:
    with contextlib.suppress(OSError, ValueError):
        if file.stat().st_size <= MAX_FILE_BYTES:
            return _ENTRIES.validate_json(file.read_bytes())
    return {}
