"""What the host remembers of each slot, as one structured array: a row moves with one assignment, a column is a view.

Shapes: B slots, T tokens.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import KINDS, PolicyColumns
from hrm_edge_runtime.batching.scheduler import Job
from hrm_puzzles.puzzle import UNKNOWN

Rows = NDArray[Any]

NO_TOKEN = -1  # what `answer` holds before the first segment; no answer of a sound engine contains it


def new_rows(num_slots: int, seq_len: int) -> Rows:
    """A row for every slot; a row means nothing until a job is loaded into it."""
    columns: list[Any] = [
        ("tokens", np.int32, (seq_len,)),
        ("answer", np.int32, (seq_len,)),
        ("verdict", np.int8),
        ("margin", np.float32),
        ("q_halt", np.float32),
        ("segment", np.int32),
        ("kind", np.int8),
        ("threshold", np.float64),
        ("max_segments", np.int32),
        ("admitted_s", np.float64),
    ]
    return np.zeros(num_slots, np.dtype(columns))


def load_row(row: Any, job: Job, now: float) -> None:
    """Begin a job in a row (a view of one element)."""
    row["tokens"] = job.tokens_T
    row["answer"] = NO_TOKEN
    row["verdict"] = UNKNOWN
    row["margin"] = row["q_halt"] = 0.0
    row["segment"] = 0
    row["kind"] = KINDS.index(job.policy.kind)
    row["threshold"] = job.policy.threshold
    row["max_segments"] = job.policy.max_segments
    row["admitted_s"] = now


def policies_of(rows: Rows) -> PolicyColumns:
    """The halting policies that stand in the rows."""
    return PolicyColumns(kind_B=rows["kind"], threshold_B=rows["threshold"], max_segments_B=rows["max_segments"])
