"""Keep the measured precisions of an unfinished export, so that a second call reuses them.

One file holds one precision: its graphs, their origin and the held-out rollout. Its name contains
the hash of everything that determines its content, so a file is never stale.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto

from hrm_calibration.halting_curve import Rollout
from hrm_export.contents import Contents
from hrm_export.forms import Graphs, Measured, measured_by
from hrm_export.options import Options
from hrm_host.atomic import new_file
from hrm_host.progress import Stages

Arrays = dict[str, NDArray[Any]]
UNREADABLE = (FileNotFoundError, ValueError, EOFError, BadZipFile)


class FinishedForms:
    """Keeps measured precisions in `.NAME.forms` until the bundle is whole."""

    def __init__(self, out: Path, contents: Contents, options: Options, stages: Stages) -> None:
        self.directory = folder_of(out)
        self.policy = contents.served.policy
        self.threshold = options.threshold
        self.stages = stages
        digest = digest_of(contents, options)
        int8_settings = repr(options.int8_budget)
        int8_digest = hashlib.sha256((digest + int8_settings).encode()).hexdigest()
        self.files = {
            "fp32": self.directory / f"fp32-{digest}.npz",
            "fp16": self.directory / f"fp16-{digest}.npz",
            "int8": self.directory / f"int8-{int8_digest}.npz",
        }

    def load(self, precision: str) -> Measured | None:
        """The precision if an earlier call has measured it, else None."""
        file = self.files[precision]
        try:
            with np.load(file, allow_pickle=False) as stored:
                arrays = dict(stored)
        except UNREADABLE:
            return None
        self.stages.say(f"reusing {precision} from {file}")
        graphs, rollout = unpacked(precision, arrays)
        return measured_by(graphs, rollout, self.policy, self.threshold)

    def keep(self, measured: Measured) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.files[measured.graphs.precision]
        with new_file(file) as unfinished, unfinished.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **packed(measured))


def folder_of(out: Path) -> Path:
    return out.with_name(f".{out.name}.forms")


def drop_finished(out: Path) -> None:
    """Delete what was kept for `out`, once its bundle is whole."""
    shutil.rmtree(folder_of(out), ignore_errors=True)


def digest_of(contents: Contents, options: Options) -> str:
    """Hash of everything that determines how a precision is made and measured."""
    served = contents.served
    asked = (contents.calibration, contents.held_out)
    settings = (
        served.policy,
        served.provider.name,
        options.threshold,
        onnxruntime.__version__,
        [questions.fingerprint() for questions in asked],
    )
    rows_N = np.union1d(asked[0].puzzle_ids_N, asked[1].puzzle_ids_N)
    digest = hashlib.sha256(repr(settings).encode())
    digest.update(served.graph.SerializeToString(deterministic=True))
    digest.update(served.puzzle_table[rows_N].tobytes())
    return digest.hexdigest()


def packed(measured: Measured) -> Arrays:
    graphs = measured.graphs
    rollout = measured.rollout
    arrays: Arrays = {
        "origin": np.array(json.dumps(graphs.origin)),
        "portable": _as_bytes(graphs.portable),
        "margin_SN": rollout.margin_SN,
        "verdict_SN": rollout.verdict_SN,
        "exact_SN": rollout.exact_SN,
    }
    if graphs.cpu is not None:
        arrays["cpu"] = _as_bytes(graphs.cpu)
    if rollout.ratings_N is not None:
        arrays["ratings_N"] = rollout.ratings_N
    return arrays


def unpacked(precision: str, arrays: Arrays) -> tuple[Graphs, Rollout]:
    graphs = Graphs(
        precision=precision,
        portable=_graph_of(arrays["portable"]),
        cpu=_graph_of(arrays["cpu"]) if "cpu" in arrays else None,
        origin=json.loads(str(arrays["origin"])),
    )
    rollout = Rollout(
        margin_SN=arrays["margin_SN"],
        verdict_SN=arrays["verdict_SN"],
        exact_SN=arrays["exact_SN"],
        ratings_N=arrays.get("ratings_N"),
    )
    return graphs, rollout


def _as_bytes(graph: ModelProto) -> NDArray[np.uint8]:
    return np.frombuffer(graph.SerializeToString(deterministic=True), np.uint8)


def _graph_of(content: NDArray[np.uint8]) -> ModelProto:
    return ModelProto.FromString(content.tobytes())
