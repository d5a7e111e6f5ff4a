"""A loss that the held-out puzzles do not know well enough passes no gate and fails none."""

import json
from pathlib import Path

import numpy as np
import pytest
from bundle_tools import with_manifest
from cli_tools import succeeded
from export_tools import data_set, small_model

from hrm_calibration.judge import ParityError, doubt_about, require_small_loss
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import Manifest
from hrm_edge_runtime.engines.factory import choose
from hrm_export.cli import main as app
from hrm_model import checkpoint
from hrm_parity.outcomes import Paired, loss_interval, num_deciding, paired
from hrm_puzzles import registry

NUM_PUZZLES = 40


def result(num_puzzles: int, num_lost: int, num_won: int) -> Paired:
    """A reference that solves half, and a candidate that loses and wins some."""
    reference_N = np.arange(num_puzzles) % 2 == 0
    ours_N = reference_N.copy()
    ours_N[np.flatnonzero(reference_N)[:num_lost]] = False
    ours_N[np.flatnonzero(~reference_N)[:num_won]] = True
    return paired(reference_N, ours_N)


@pytest.mark.parametrize(
    ("num_puzzles", "num_lost", "num_won", "verdict"),
    [
        (2000, 3, 2, "passes"),
        (2000, 60, 10, "fails"),
        (2000, 25, 5, "undecided"),  # 1.0 points: the interval reaches over the gate
        (40, 0, 1, "undecided"),  # it won, but 40 puzzles tell nothing about a point
        (300, 0, 0, "passes"),
    ],
)
def test_the_gate_compares_the_bounds_of_the_interval(
    num_puzzles: int, num_lost: int, num_won: int, verdict: str
):
    exact = result(num_puzzles, num_lost, num_won)
    doubt = doubt_about(exact, 1.0)
    if verdict == "fails":
        with pytest.raises(ParityError, match=r"int8 loses 2\.50 points"):
            require_small_loss("int8", exact, 1.0)
        return
    require_small_loss("int8", exact, 1.0)
    assert (doubt is not None) == (verdict == "undecided")


def test_the_doubt_names_the_loss_and_the_puzzles_that_would_decide():
    exact = result(24, 0, 0)
    assert doubt_about(exact, 1.0) == "loss 0.0 ± 7.5 points, about 207 puzzles would decide"
    _, high = loss_interval(0, 0, 207)
    assert 100 * high <= 1.0
    _, high = loss_interval(0, 0, 180)
    assert 100 * high > 1.0
    exact = result(2000, 20, 0)
    assert num_deciding(exact, 1.0) is None
    doubt = doubt_about(exact, 1.0)
    assert doubt.endswith("more than 1,000,000 puzzles would decide")


@pytest.fixture(scope="module")
def undecided(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("undecided")
    puzzle = registry.get("sudoku-4x4")
    model = small_model(num_puzzle_ids=1, max_segments=2, high_cycles=1, low_cycles=1)
    checkpoint.save(folder / "step_12", model, {"puzzle": puzzle.name, "step": 12})
    data = data_set(folder / "data", puzzle, 4 * NUM_PUZZLES // 3)
    out = folder / "small.bundle"
    options = ("--golden", 2, "--data", data, "--fp16", "--int8", "--out", out)
    return out, succeeded(app, folder / "step_12", *options).stdout


def test_an_undecided_precision_is_marked(undecided: tuple[Path, str]):
    path, said = undecided
    manifest = Bundle.open(path).manifest
    assert set(manifest.precisions) == {"fp32", "fp16", "int8"}
    assert set(manifest.undecided) == {"fp16", "int8"}
    assert manifest.decided == ["fp32"]
    for precision, doubt in manifest.undecided.items():
        assert doubt.startswith("loss ")
        assert f"{precision} is undecided: {doubt}" in said
    assert "auto serves fp32 on this CPU" in said
    cells = {}
    for line in said.splitlines():
        name, _, text = line.strip("│ ").partition("│")
        cells[name.strip()] = text
    assert cells["held-out puzzles"].count("40") == 3
    for name in ("points lost (95 %)", "proofs lost (95 %)"):
        assert cells[name].count("(") == 2  # an interval beside each loss


def test_auto_skips_an_undecided_precision(undecided: tuple[Path, str]):
    path, _ = undecided
    bundle = Bundle.open(path)
    assert choose(bundle, "cuda").precision == "fp32"
    assert choose(bundle, "cuda:fp16").precision == "fp16"
    sure = with_manifest(bundle, undecided={})
    assert choose(sure, "cuda").precision == "fp16"


def test_undecided_names_precisions(undecided: tuple[Path, str]):
    path, _ = undecided
    fields = json.loads((path / "manifest.json").read_text())
    with pytest.raises(ValueError, match="undecided names"):
        Manifest.model_validate({**fields, "undecided": {"int4": "loss"}})
