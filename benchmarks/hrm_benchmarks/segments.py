"""What one segment costs: every engine of a bundle in turns, and PyTorch beside them where a checkpoint is given.

Shapes: B puzzles of a batch, T tokens.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

from hrm_benchmarks.report import environment
from hrm_benchmarks.turns import Step, Turn, spread, spread_text, step_seconds, take_turns
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.factory import choose, engine_for

PYTORCH = ("pytorch", "pytorch-compiled")
PROFILED_STEPS = 50
SHOWN_OPERATORS = 8


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An engine (spelled ENGINE[:PRECISION], or one of PYTORCH) at one batch."""

    bundle: Path
    engine: str
    batch: int
    num_threads: int
    checkpoint: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A segment of one entry; the ratio says how many times as fast as the first entry of its batch (quartiles too)."""

    engine: str
    batch: int
    segment_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float


def entries(
    bundle: Path, engines: Sequence[str], batches: Sequence[int], *, num_threads: int, checkpoint: Path | None
) -> list[Entry]:
    """Every engine at every batch; refuses (ValueError) engines the bundle cannot run."""
    opened = Bundle.open(bundle)
    for engine in engines:
        choose(opened, engine)
    every = [*engines, *(PYTORCH if checkpoint else ())]
    return [
        Entry(bundle=bundle, engine=engine, batch=batch, num_threads=num_threads, checkpoint=checkpoint)
        for batch in batches
        for engine in every
    ]


def measure(
    all_of: Sequence[Entry], *, rounds: int, turn_s: float, cpu_clock: bool, tell: Callable[[str], object]
) -> list[Cost]:
    """Batch by batch; the first entry of a batch is what the others are compared with."""
    costs: list[Cost] = []
    for batch in dict.fromkeys(one.batch for one in all_of):
        group = [one for one in all_of if one.batch == batch]
        tell(f"batch {batch}: {', '.join(one.engine for one in group)}")
        costs += _costs(group, take_turns(_prepared, group, rounds=rounds, turn_s=turn_s, tell=tell), cpu_clock)
    return costs


def _costs(group: Sequence[Entry], turns: Sequence[Sequence[Turn]], cpu_clock: bool) -> list[Cost]:
    seconds = step_seconds(turns, cpu_clock=cpu_clock)
    ratios = seconds[:, :1] / seconds
    return [
        Cost(
            engine=one.engine,
            batch=one.batch,
            segment_ms=1e3 * float(np.median(seconds[:, index])),
            **dict(zip(("ratio", "ratio_low", "ratio_high"), spread(ratios[:, index]), strict=True)),
        )
        for index, one in enumerate(group)
    ]


def _prepared(entry: Entry) -> tuple[None, Step]:
    """Runs in the entry's own process: every slot holds a puzzle, and a step is one more segment of all."""
    bundle = Bundle.open(entry.bundle)
    tokens_BT = np.resize(bundle.golden().tokens_BT, (entry.batch, bundle.manifest.seq_len))
    if entry.engine in PYTORCH:
        from hrm_benchmarks.desktop.pytorch_segment import segment_step

        assert entry.checkpoint is not None
        compiled = entry.engine == "pytorch-compiled"
        return None, segment_step(entry.checkpoint, tokens_BT, entry.num_threads, compiled=compiled)
    engine = engine_for(bundle, engine=entry.engine, num_slots=entry.batch, num_threads=entry.num_threads)
    for slot, tokens_T in enumerate(tokens_BT):
        engine.load(slot, tokens_T, bundle.puzzle_table[0])
    return None, lambda: engine.step(entry.batch)


def operator_ms(bundle: Bundle, precision: str, batch: int, num_threads: int) -> dict[str, float]:
    """Milliseconds of a segment by operator on the CPU, as ONNX Runtime's own profiler counts them, dearest first."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.enable_profiling = num_threads, True
    with tempfile.TemporaryDirectory() as directory:
        options.profile_file_prefix = str(Path(directory) / "segment")
        graph = bundle.graph_path(precision, device="cpu")
        session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        feeds = _feeds(session, batch)
        for _ in range(PROFILED_STEPS):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    spent: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"]
    return {name: micros / 1e3 / PROFILED_STEPS for name, micros in spent.most_common()}


def _feeds(session: onnxruntime.InferenceSession, batch: int) -> dict[str, Any]:
    """A carry of unit spread, since real ones are normalised; tokens and flags of zeros cost what others cost."""
    rng, feeds = np.random.default_rng(0), dict[str, Any]()
    types = {"tensor(int32)": np.int32, "tensor(bool)": np.bool_, "tensor(float)": np.float32}
    for value in session.get_inputs():
        shape, dtype = (batch, *value.shape[1:]), types[value.type]
        drawn = rng.standard_normal(shape) if value.name.startswith("z_") else np.zeros(shape)
        feeds[value.name] = drawn.astype(dtype)
    return feeds


def print_costs(title: str, costs: Sequence[Cost], console: Console) -> None:
    caption = "ratio: how many times as fast as the first engine of the batch, in the same round (median, quartiles)"
    table = Table(title=title, caption=caption, caption_justify="left", title_justify="left")
    for column in ("batch", "engine", "ms a segment", "ratio"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for one in costs:
        ratio = spread_text(one.ratio, one.ratio_low, one.ratio_high)
        table.add_row(str(one.batch), one.engine, f"{one.segment_ms:.2f}", ratio)
    console.print(table)


def print_operators(by_precision: dict[str, dict[str, float]], console: Console) -> None:
    table = Table(title="where a segment's time goes, ms by operator", title_justify="left")
    for precision, spent in by_precision.items():
        table.add_column(f"{precision}, {sum(spent.values()):.2f} ms")
    columns = [[f"{name} {ms:.2f}" for name, ms in spent.items()][:SHOWN_OPERATORS] for spent in by_precision.values()]
    for row in range(SHOWN_OPERATORS):
        table.add_row(*(column[row] if row < len(column) else "" for column in columns))
    console.print(table)


def as_json(settings: dict[str, object], costs: Sequence[Cost], operators: dict[str, dict[str, float]]) -> str:
    runs = [asdict(one) for one in costs]
    found = {"environment": environment(), "settings": settings, "runs": runs, "operator_ms": operators}
    return json.dumps(found, indent=2, default=str)
