"""Times one segment on every engine of a bundle, and in PyTorch if a checkpoint is passed.

Shapes: B puzzles of a batch, T tokens, R rounds, C contestants.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks.report import RATIO, Rounds, Row, Step, beside_first, take_turns, tell
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.factory import choose, engine_for

PYTORCH = "pytorch"
PYTORCH_COMPILED = "pytorch-compiled"
CAPTION = (
    "ratio: how many times as fast as the first engine of the batch, in the same round "
    "(median, quartiles)"
)
COLUMNS = {
    "batch": "{batch}",
    "engine": "{engine}",
    "ms a segment": "{segment_ms:.2f}",
    "ratio": RATIO,
}


def measure(
    bundle: Bundle,
    engines: Sequence[str],
    batches: Sequence[int],
    rounds: Rounds,
    *,
    num_threads: int,
    checkpoint: Path | None,
) -> list[Row]:
    """Return a row for each engine (ENGINE[:PRECISION]) at each batch.

    With a checkpoint, PyTorch takes turns too. Raises ValueError for engines that the bundle cannot
    run.
    """
    for engine in engines:
        if choose(bundle, engine).engine == "unrolled":
            raise ValueError(
                "an unrolled graph lacks a segment to time, because its first step runs the whole "
                "loop: name another engine."
            )
    names = [*engines]
    if checkpoint is not None:
        names += [PYTORCH, PYTORCH_COMPILED]
    rows: list[Row] = []
    for batch in dict.fromkeys(batches):
        tell(f"batch {batch}: {', '.join(names)}")
        prepare = partial(
            prepared,
            bundle.path,
            batch=batch,
            num_threads=num_threads,
            checkpoint=checkpoint,
        )
        contestants = [partial(prepare, name) for name in names]
        seconds_RC = take_turns(contestants, rounds)
        rows += rows_of(names, batch, seconds_RC)
    return rows


def rows_of(names: Sequence[str], batch: int, seconds_RC: NDArray[np.float64]) -> list[Row]:
    medians_ms = (1e3 * np.median(seconds_RC, axis=0)).tolist()
    ratios = beside_first(1 / seconds_RC)
    rows: list[Row] = []
    for name, segment_ms, ratio in zip(names, medians_ms, ratios, strict=True):
        rows.append({"engine": name, "batch": batch, "segment_ms": segment_ms, **ratio})
    return rows


def prepared(
    path: Path, engine: str, *, batch: int, num_threads: int, checkpoint: Path | None
) -> tuple[None, Step]:
    """Return a step that runs one more segment of a full batch; runs in a child process."""
    bundle = Bundle.open(path)
    golden_tokens_BT = bundle.golden().tokens_BT
    tokens_BT = np.resize(golden_tokens_BT, (batch, bundle.manifest.seq_len))
    if engine in (PYTORCH, PYTORCH_COMPILED):
        from hrm_benchmarks.desktop.training import segment_step

        assert checkpoint is not None
        is_compiled = engine == PYTORCH_COMPILED
        return None, segment_step(checkpoint, tokens_BT, num_threads, compiled=is_compiled)
    opened = engine_for(bundle, engine=engine, num_slots=batch, num_threads=num_threads)
    for slot, tokens_T in enumerate(tokens_BT):
        opened.load(slot, tokens_T, bundle.puzzle_table[0])
    return None, partial(opened.step, batch)
