"""hrm-parity over a real bundle: what it exits with, prints, writes and refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import read_manifest, write_manifest
from hrm_edge_runtime.parity.cli import main as app
from hrm_edge_runtime.parity.options import DEFAULT_FILE
from hrm_puzzles import registry
from hrm_puzzles.data import datasets

SUDOKU = registry.get("sudoku-4x4")


def parity(bundle: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, [str(bundle), "--threads", "1", *map(str, arguments)])


def fields_of(bundle: Path) -> dict[str, object]:
    return read_manifest(bundle).model_dump(exclude={"files"})


@pytest.fixture
def copied(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A bundle to change."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "copied.bundle"))


@pytest.fixture
def two_precisions(copied: Path) -> Path:
    """The same graph under another precision's name."""
    shutil.copy(copied / "step.fp32.onnx", copied / "step.fp16.onnx")
    fields = fields_of(copied)
    fields["precisions"] = {"fp32": "step.fp32.onnx", "fp16": "step.fp16.onnx"}
    write_manifest(copied, **fields)
    return copied


def test_an_honest_bundle_passes(tiny_bundle: Path) -> None:
    ended = parity(tiny_bundle)
    assert ended.exit_code == 0, ended.output
    assert "passed: every gate holds" in ended.output
    assert "5 puzzles (golden traces)" in ended.output


def test_a_turned_puzzle_table_is_an_exit_code_of_1_with_the_row(copied: Path) -> None:
    table = np.load(copied / "puzzle_table.npy")
    np.save(copied / "puzzle_table.npy", np.roll(table, 1, axis=0))
    write_manifest(copied, **fields_of(copied))  # a faulty export: the hashes fit
    ended = parity(copied)
    assert ended.exit_code == 1
    assert "first break: worst logit_gap in segment 1, puzzle" in ended.output
    assert "the two sides do not read the same row" in ended.output


def test_fresh_puzzles_and_a_data_set_go_through_two_engines(
    two_precisions: Path, tmp_path: Path
) -> None:
    inputs_NT = np.random.default_rng(0).integers(1, 6, (20, 16), dtype=np.int32)
    datasets.write_split(tmp_path / "data", "test", inputs_NT, inputs_NT, puzzle=SUDOKU)
    sources = {
        "fresh, mixed, seed 1": ["--puzzles", 6],
        "test split of data": ["--data", tmp_path / "data"],
    }
    for source, more in sources.items():
        ended = parity(two_precisions, "--engine", "cpu:fp16", *more, "--json")
        found = json.loads(ended.output)
        assert ended.exit_code == 0
        assert (found["passed"], found["puzzles"]) == (True, source)
        assert found["candidate"] == "cpu:fp16"
        assert found["reference"] == "cpu:fp32"
    assert found["num_puzzles"] == 20


@pytest.mark.parametrize(("count", "is_unsure"), [(6, True), (1200, False)])
def test_puzzles_that_are_too_few_to_tell_a_loss_are_said_to_be(
    two_precisions: Path, tmp_path: Path, count: int, is_unsure: bool
) -> None:
    inputs_NT = np.random.default_rng(0).integers(1, 6, (count, 16), dtype=np.int32)
    datasets.write_split(tmp_path / "data", "test", inputs_NT, inputs_NT, puzzle=SUDOKU)
    options = ["--engine", "cpu:fp16", "--data", tmp_path / "data", "--puzzles", count]
    ended = parity(two_precisions, *options)
    assert ended.exit_code == 0, ended.output
    assert "passed: every gate holds" in ended.output
    assert (f"{count} puzzles are too few to tell exact_loss" in ended.output) == is_unsure


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--puzzles", "4"], "compared with itself"),
        (["--against", "cpu:fp32", "--checkpoint", "x"], "one reference"),
        (["--gates", "nowhere.json"], "start from"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    tiny_bundle: Path, arguments: list[str], said: str
) -> None:
    ended = parity(tiny_bundle, "--engine", "cpu", *arguments)  # of two --engine the last counts
    assert ended.exit_code == 2
    assert said in ended.stderr
    assert ended.stderr.startswith("hrm-parity: ")


def test_gates_come_from_a_file_and_unknown_names_are_refused(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    gates = json.loads(DEFAULT_FILE.read_text())
    file = tmp_path / "gates.json"
    every_segment = gates["fp32"]["golden"]["every_segment"]
    every_segment["worst"] = {"logit_drift": 0.5}
    file.write_text(json.dumps(gates))
    found = json.loads(parity(tiny_bundle, "--gates", file, "--json").output)
    assert found["gates"]["every_segment"]["worst"] == {"logit_drift": 0.5}
    every_segment["worst"] = {"logit_drfit": 0.5}
    file.write_text(json.dumps(gates))
    assert "logit_drfit" in parity(tiny_bundle, "--gates", file).stderr


def test_a_gate_that_an_engine_gives_no_figures_for_is_said_to_be_not_judged(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    gates = json.loads(DEFAULT_FILE.read_text())
    gates["fp32"]["golden"]["first_segment"] = {"mean": {"carry_drift": 0.1}}
    (tmp_path / "gates.json").write_text(json.dumps(gates))
    ended = parity(tiny_bundle, "--gates", tmp_path / "gates.json")  # golden traces hold no carry
    assert ended.exit_code == 0
    assert "not judged, since an engine keeps its carry to itself: carry_drift" in ended.output


def test_findings_are_kept_in_a_bundle_that_still_opens(copied: Path) -> None:
    before = Bundle.open(copied).manifest
    assert parity(copied, "--write").exit_code == 0
    assert parity(copied, "--write").exit_code == 0
    after = Bundle.open(copied).manifest
    kept = json.loads((copied / "parity.json").read_text())
    assert list(kept) == ["cpu:fp32 against PyTorch (golden traces) on golden traces"]
    others = {name: entry for name, entry in after.files.items() if name != "parity.json"}
    assert after.model_copy(update={"files": others}) == before


def test_a_desktop_part_that_is_missing_names_the_line_to_install_it(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "desk-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: desk\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hrm_edge.parity]\ncheckpoint = no_such_package:open\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ended = parity(tiny_bundle, "--checkpoint", tmp_path)
    assert ended.exit_code == 2
    remedy = "needs no_such_package, which is not installed: pip install 'hrm-edge[export]'"
    assert remedy in ended.stderr
