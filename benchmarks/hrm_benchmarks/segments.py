"""What one segment costs: every engine of a bundle in turns, and PyTorch beside them where a checkpoint is given.

Shapes: B puzzles of a batch, T tokens.
"""

import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from hrm_benchmarks import report
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.engine import INPUTS
from hrm_edge_runtime.engines.factory import choose, engine_for

PYTORCH = ("pytorch", "pytorch-compiled")
PROFILED_STEPS = 50
SHOWN_OPERATORS = 8
CAPTION = "ratio: how many times as fast as the first engine of the batch, in the same round (median, quartiles)"
COLUMNS = [("batch", "{batch}"), ("engine", "{engine}"), ("ms a segment", "{segment_ms:.2f}"), ("ratio", report.RATIO)]


def measure(
    bundle: Bundle,
    engines: Sequence[str],
    batches: Sequence[int],
    rounds: report.Rounds,
    *,
    num_threads: int,
    checkpoint: Path | None,
) -> list[report.Row]:
    """A row for each engine (ENGINE[:PRECISION]) at each batch, compared with the first engine of its batch.

    With a checkpoint PyTorch takes turns too. Refuses (ValueError) engines the bundle cannot run.
    """
    for engine in engines:
        if choose(bundle, engine).engine == "unrolled":
            raise ValueError("an unrolled graph has no segment to time: its first step runs the whole loop.")
    names = [*engines, *(PYTORCH if checkpoint else ())]
    rows: list[report.Row] = []
    for batch in dict.fromkeys(batches):
        report.tell(f"batch {batch}: {', '.join(names)}")
        contestants = [partial(_prepared, bundle.path, name, batch, num_threads, checkpoint) for name in names]
        rows += rows_of(names, batch, report.take_turns(contestants, rounds))
    return rows


def rows_of(names: Sequence[str], batch: int, seconds_RC: np.typing.NDArray[np.float64]) -> list[report.Row]:
    """The figures of engines that took turns at one batch."""
    medians_ms = (1e3 * np.median(seconds_RC, axis=0)).tolist()
    return [
        {"engine": name, "batch": batch, "segment_ms": ms, **ratio}
        for name, ms, ratio in zip(names, medians_ms, report.beside_first(1 / seconds_RC), strict=True)
    ]


def _prepared(
    path: Path, engine: str, batch: int, num_threads: int, checkpoint: Path | None
) -> tuple[None, report.Step]:
    """Runs in a child process: every slot holds a puzzle, and a step is one more segment of all."""
    bundle = Bundle.open(path)
    tokens_BT = np.resize(bundle.golden().tokens_BT, (batch, bundle.manifest.seq_len))
    if engine in PYTORCH:
        from hrm_benchmarks.desktop.training import segment_step

        assert checkpoint is not None
        return None, segment_step(checkpoint, tokens_BT, num_threads, compiled=engine == "pytorch-compiled")
    opened = engine_for(bundle, engine=engine, num_slots=batch, num_threads=num_threads)
    for slot, tokens_T in enumerate(tokens_BT):
        opened.load(slot, tokens_T, bundle.puzzle_table[0])
    return None, lambda: opened.step(batch)


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


def show(title: str, found: Sequence[report.Row], by_precision: Mapping[str, Mapping[str, float]]) -> None:
    """The engines, and the dearest operators of each precision side by side."""
    report.print_table(title, COLUMNS, found, caption=CAPTION, left=["engine"])
    columns = [(f"{name}, {sum(spent.values()):.2f} ms", f"{{{name}}}") for name, spent in by_precision.items()]
    texts = [[f"{op} {ms:.2f}" for op, ms in spent.items()][:SHOWN_OPERATORS] for spent in by_precision.values()]
    rows = [dict(zip(by_precision, line, strict=True)) for line in itertools.zip_longest(*texts, fillvalue="")]
    headings = [heading for heading, _ in columns]
    report.print_table("where a segment's time goes, ms by operator", columns, rows, left=headings)
