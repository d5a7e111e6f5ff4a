"""The acceptance run, on the CPU engine: parity, bench and soak in one JSON, and what makes it fail."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hrm_edge_runtime import acceptance
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.manifest import write_manifest


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "MEASURE_S", 0.0)


def accepted(bundle: Path, out: Path, *more: str) -> tuple[int, dict[str, Any]]:
    arguments = [str(bundle), "--engine", "cpu", "--threads", "1", "--soak-minutes", "0.005", "--out", str(out)]
    done = CliRunner().invoke(acceptance.app, [*arguments, *more])
    return done.exit_code, json.loads(out.read_text())


def test_one_run_holds_parity_bench_and_soak(tiny_bundle: Path, tmp_path: Path) -> None:
    status, findings = accepted(tiny_bundle, tmp_path / "acceptance.json")
    assert (status, findings["passed"], findings["faults"]) == (0, True, [])
    assert findings["engine"]["choice"] == "cpu:fp32"
    assert sorted(findings["bench"]["step_ms"]) == ["1", "2", "4"]
    soak = findings["soak"]
    assert soak["puzzles"] >= 5
    assert soak["changed_answers"] == 0
    assert soak["samples"][-1]["rss_mb"] > 0
    assert findings["device"]["power_mode"] in ("none", "unknown")


def test_the_full_run_holds_every_shipped_model_each_step_and_the_tests_in_one_json(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, "SHIPPED_BUNDLES", tiny_bundle.parent)
    monkeypatch.setattr(acceptance, "try_device", lambda: [{"step": "CUDA", "level": "fail", "found": "no device"}])
    (tmp_path / "tests.xml").write_text(
        '<testsuite><testcase classname="a" name="one"/>'
        '<testcase classname="a" name="two"><failure/></testcase>'
        '<testcase classname="a" name="three"><skipped/></testcase></testsuite>'
    )
    status, findings = accepted(tiny_bundle, tmp_path / "out.json", "--full", "--tests", str(tmp_path / "tests.xml"))
    assert findings["shipped"] == {"tiny cpu:fp32": []}
    assert findings["tests"] == {"a.one": "passed", "a.two": "failed", "a.three": "skipped"}
    assert (status, findings["faults"]) == (1, ["a.two: failed"])
    assert findings["steps"][0]["level"] == "fail"


def test_a_refusal_is_a_report_too(tmp_path: Path) -> None:
    status, findings = accepted(tmp_path / "nowhere.bundle", tmp_path / "acceptance.json")
    assert (status, findings["passed"]) == (1, False)
    assert "nowhere.bundle" in findings["faults"][0]


def test_an_engine_that_says_something_else_fails(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "tiny.bundle"))
    with np.load(bundle / "golden.npz") as golden:
        arrays = {**golden, "logits_SBTV": golden["logits_SBTV"] + 1}
    np.savez(bundle / "golden.npz", allow_pickle=False, **arrays)
    fields = Bundle.open(tiny_bundle).manifest.model_dump(exclude={"files", "format_version"})
    write_manifest(bundle, **fields)
    status, findings = accepted(bundle, tmp_path / "acceptance.json")
    assert (status, findings["passed"]) == (1, False)
    assert findings["faults"]
    assert findings["soak"]["puzzles"] >= 5
