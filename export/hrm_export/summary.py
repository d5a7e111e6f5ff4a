"""What was exported, one line for each precision: what it weighs, loses, solves and takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from hrm_calibration.paired import Paired
from hrm_edge_runtime.bundle import Bundle
from hrm_export.measuring import MEASURED_BATCHES, segment_ms
from hrm_export.provenance import num_parameters
from hrm_export.results import Contents, Result


@dataclass(frozen=True, kw_only=True)
class Row:
    """One precision as the CPU runs it, `size_bytes` and `ratio` as it travels; `segment_ms` by batch size.

    `logit_gap` is the largest against PyTorch on the golden traces, the shares are of the held-out puzzles.
    """

    precision: str
    size_bytes: int
    cpu_size_bytes: int | None
    ratio: float
    logit_gap: float
    exact: float
    proven: float
    mean_segments: float
    threshold: float
    lost: Paired | None
    segment_ms: dict[int, float]

    def cells(self) -> dict[str, str]:
        """What a reader is shown, by its title."""
        cpu = {} if self.cpu_size_bytes is None else {"form for CPUs": f"{self.cpu_size_bytes:,} bytes"}
        return {
            "file": f"{self.size_bytes:,} bytes",
            "of fp32": f"{self.ratio:.3f}",
            **cpu,
            "logit gap to PyTorch": f"{self.logit_gap:.1e}",
            "exact solves": f"{100 * self.exact:.1f} %",
            "points lost (95 %)": "–" if self.lost is None else _loss(self.lost),
            "verified solves": f"{100 * self.proven:.1f} %",
            "mean segments": f"{self.mean_segments:.2f}",
            "halting threshold": f"{self.threshold:.3g}",
            **{f"segment, batch {batch}": f"{shown:.2f} ms" for batch, shown in self.segment_ms.items()},
        }

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "lost": None if self.lost is None else self.lost.model_dump()}


def rows_of(path: Path, contents: Contents, results: Sequence[Result]) -> list[Row]:
    """The rows of a finished bundle, each precision timed on this machine."""
    bundle = Bundle.open(path)
    sizes = {name: entry.size_bytes for name, entry in bundle.manifest.files.items()}
    whole = sizes[bundle.manifest.precisions["fp32"]]
    return [_row(bundle, contents, result, sizes, whole) for result in results]


def _row(bundle: Bundle, contents: Contents, result: Result, sizes: dict[str, int], whole: int) -> Row:
    names, score = list(result.form.graphs), result.measured.score
    graph = bundle.graph_path(result.form.precision, device="cpu")
    return Row(
        precision=result.form.precision,
        size_bytes=sizes[names[0]],
        cpu_size_bytes=sizes[names[-1]] if result.form.cpu is not None else None,
        ratio=sizes[names[0]] / whole,
        logit_gap=result.parity[result.on_cpu].max_logit_gap,
        exact=score.exact,
        proven=score.proven,
        mean_segments=score.mean_segments,
        threshold=result.measured.policy.threshold,
        lost=None if result.lost is None else result.lost.exact,
        segment_ms={
            batch: segment_ms(graph, batch, contents.held_out, bundle.puzzle_table) for batch in MEASURED_BATCHES
        },
    )


def table(path: Path, contents: Contents, rows: Sequence[Row]) -> Table:
    """One column for each precision."""
    title = f"{path} ({contents.puzzle.name}, {num_parameters(contents.model):,} parameters)"
    shown = Table("", *(row.precision for row in rows), title=title, title_justify="left")
    columns = [row.cells() for row in rows]
    for name in dict.fromkeys(name for column in columns for name in column):
        shown.add_row(name, *(column.get(name, "–") for column in columns))
    return shown


def footnote(contents: Contents, results: Sequence[Result]) -> str:
    """What the figures of the table rest on."""
    policy, report = results[0].measured.policy, next(iter(results[0].parity.values()))
    tried = results[0].form.origin["num_candidates"]
    return (
        f"Halting {policy.kind}, at most {policy.max_segments} segments; {len(contents.held_out)} held-out puzzles. "
        f"fp32 and PyTorch: same answers, same halting over {report.num_segments} segments of {report.num_puzzles} of "
        f"{tried} puzzles (others may amplify rounding). Times on this machine, all cores."
    )


def as_json(path: Path, contents: Contents, results: Sequence[Result], rows: Sequence[Row]) -> dict[str, Any]:
    policy = results[0].measured.policy
    return {
        "bundle": str(path),
        "name": contents.name,
        "puzzle": contents.puzzle.name,
        "num_parameters": num_parameters(contents.model),
        "halting": {"policy": policy.kind, "max_segments": policy.max_segments},
        "num_held_out": len(contents.held_out),
        "precisions": [row.as_json() for row in rows],
    }


def _loss(lost: Paired) -> str:
    return f"{100 * lost.loss:.2f} ({100 * lost.low:.2f} to {100 * lost.high:.2f})"
