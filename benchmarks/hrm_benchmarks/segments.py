"""What one segment costs: every engine of a bundle in turns, and PyTorch beside them where a checkpoint is given.

Shapes: B puzzles of a batch, T tokens.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hrm_benchmarks import report
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.factory import choose, engine_for

PYTORCH = ("pytorch", "pytorch-compiled")
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
