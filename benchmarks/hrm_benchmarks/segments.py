"""What one segment costs: every engine of a bundle in turns, and PyTorch beside them where a checkpoint is given.

Shapes: B puzzles of a batch, T tokens.
"""

import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from hrm_benchmarks.report import Row, print_table
from hrm_benchmarks.turns import RATIO, Lap, Step, beside_first, step_seconds, take_turns
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.engine import INPUTS
from hrm_edge_runtime.engines.factory import choose, engine_for

PYTORCH = ("pytorch", "pytorch-compiled")
PROFILED_STEPS = 50
SHOWN_OPERATORS = 8
CAPTION = "ratio: how many times as fast as the first engine of the batch, in the same round (median, quartiles)"
COLUMNS = [("batch", "{batch}"), ("engine", "{engine}"), ("ms a segment", "{segment_ms:.2f}"), ("ratio", RATIO)]


@dataclass(frozen=True, kw_only=True)
class EngineAtBatch:
    """An engine (spelled ENGINE[:PRECISION], or one of PYTORCH) at one batch."""

    bundle: Path
    name: str
    batch: int
    num_threads: int
    checkpoint: Path | None = None


def engines_of(
    bundle: Path, names: Sequence[str], batches: Sequence[int], *, num_threads: int, checkpoint: Path | None
) -> list[EngineAtBatch]:
    """Every engine at every batch; refuses (ValueError) engines the bundle cannot run."""
    opened = Bundle.open(bundle)
    for name in names:
        choose(opened, name)
    return [
        EngineAtBatch(bundle=bundle, name=name, batch=batch, num_threads=num_threads, checkpoint=checkpoint)
        for batch in batches
        for name in (*names, *(PYTORCH if checkpoint else ()))
    ]


def measure(
    engines: Sequence[EngineAtBatch], *, rounds: int, turn_s: float, cpu_clock: bool, tell: Callable[[str], object]
) -> list[Row]:
    """A row for each engine, batch by batch; the others are compared with the first engine of their batch."""
    rows: list[Row] = []
    for batch in dict.fromkeys(engine.batch for engine in engines):
        group = [engine for engine in engines if engine.batch == batch]
        tell(f"batch {batch}: {', '.join(engine.name for engine in group)}")
        rows += rows_of(group, take_turns(_prepared, group, rounds=rounds, turn_s=turn_s, tell=tell), cpu_clock)
    return rows


def rows_of(engines: Sequence[EngineAtBatch], turns: Sequence[Sequence[Lap]], cpu_clock: bool) -> list[Row]:
    """The figures of engines that took turns at one batch."""
    seconds_RC = step_seconds(turns, cpu_clock=cpu_clock)
    medians_ms = (1e3 * np.median(seconds_RC, axis=0)).tolist()
    return [
        {"engine": engine.name, "batch": engine.batch, "segment_ms": ms, **ratio}
        for engine, ms, ratio in zip(engines, medians_ms, beside_first(1 / seconds_RC), strict=True)
    ]


def _prepared(engine: EngineAtBatch) -> tuple[None, Step]:
    """Runs in a child process: every slot holds a puzzle, and a step is one more segment of all."""
    bundle = Bundle.open(engine.bundle)
    tokens_BT = np.resize(bundle.golden().tokens_BT, (engine.batch, bundle.manifest.seq_len))
    if engine.name in PYTORCH:
        from hrm_benchmarks.desktop.training import segment_step

        assert engine.checkpoint is not None
        compiled = engine.name == "pytorch-compiled"
        return None, segment_step(engine.checkpoint, tokens_BT, engine.num_threads, compiled=compiled)
    opened = engine_for(bundle, engine=engine.name, num_slots=engine.batch, num_threads=engine.num_threads)
    for slot, tokens_T in enumerate(tokens_BT):
        opened.load(slot, tokens_T, bundle.puzzle_table[0])
    return None, lambda: opened.step(engine.batch)


def operator_ms(bundle: Bundle, precision: str, batch: int, num_threads: int) -> dict[str, float]:
    """Milliseconds of a segment by operator on the CPU, as ONNX Runtime's own profiler counts them, dearest first."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.enable_profiling = num_threads, True
    with tempfile.TemporaryDirectory() as directory:
        options.profile_file_prefix = str(Path(directory) / "segment")
        graph = bundle.graph_path(precision, device="cpu")
        session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        # a carry of unit spread, since real ones are normalised; tokens and flags of zeros cost what others cost
        rng, feeds = np.random.default_rng(0), dict[str, Any]()
        for value in session.get_inputs():
            shape = (batch, *value.shape[1:])
            drawn = rng.standard_normal(shape) if value.name.startswith("z_") else np.zeros(shape)
            feeds[value.name] = drawn.astype(INPUTS[value.name])
        for _ in range(PROFILED_STEPS):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    spent: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"]
    return {name: micros / 1e3 / PROFILED_STEPS for name, micros in spent.most_common()}


def print_operators(by_precision: Mapping[str, Mapping[str, float]]) -> None:
    """The dearest operators of each precision, side by side."""
    columns = [(f"{name}, {sum(spent.values()):.2f} ms", f"{{{name}}}") for name, spent in by_precision.items()]
    texts = [[f"{op} {ms:.2f}" for op, ms in spent.items()][:SHOWN_OPERATORS] for spent in by_precision.values()]
    rows = [dict(zip(by_precision, line, strict=True)) for line in itertools.zip_longest(*texts, fillvalue="")]
    headings = [heading for heading, _ in columns]
    print_table("where a segment's time goes, ms by operator", columns, rows, left=headings)
