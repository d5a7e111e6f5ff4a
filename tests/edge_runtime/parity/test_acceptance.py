"""The acceptance run on the CPU: parity, bench and soak in one JSON, and what makes it fail."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_tools import restate
from cli_tools import invoked

from hrm_parity import acceptance


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "MEASURE_S", 0.0)


def accepted(bundle: Path, out: Path, *more: object) -> tuple[int, dict[str, Any]]:
    options = ["--engine", "cpu", "--threads", 1, "--soak-minutes", 0.005, "--out", out, *more]
    done = invoked(acceptance.app, bundle, *options)
    findings = json.loads(out.read_text())
    findings["line"] = done.stdout
    return done.exit_code, findings


def test_one_run_holds_parity_bench_and_soak(tiny_bundle: Path, tmp_path: Path):
    status, findings = accepted(tiny_bundle, tmp_path / "acceptance.json")
    assert (status, findings["passed"], findings["faults"]) == (0, True, [])
    assert findings["engine"]["choice"] == "cpu:fp32"
    assert sorted(findings["bench"]["step_ms"]) == ["1", "2", "4"]
    soak = findings["soak"]
    assert soak["puzzles"] >= 5
    assert soak["changed_answers"] == 0
    assert soak["samples"][-1]["rss_mb"] > 0
    assert findings["device"]["power_mode"] in ("none", "unknown")
    step_ms = findings["bench"]["step_ms"]["4"]
    counts = f"{soak['puzzles']} puzzles"
    for figure in ("power_mode", "numpy", "cpu:fp32", f"{step_ms} ms for 4", counts):
        assert figure in findings["line"]
    assert findings["line"].endswith("; passed\n")


NO_DEVICE = {"step": "CUDA", "level": "fail", "found": "no device"}


def test_the_full_run_holds_the_steps_of_the_device_and_every_shipped_bundle(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(acceptance, "SHIPPED_BUNDLES", tiny_bundle.parent)
    monkeypatch.setattr(acceptance, "try_device", lambda: [NO_DEVICE])
    status, findings = accepted(tiny_bundle, tmp_path / "out.json", "--full")
    assert (status, findings["faults"], findings["running"]) == (0, [], None)
    assert findings["shipped"] == {"tiny cpu:fp32": []}
    assert findings["steps"] == [NO_DEVICE]


def test_parts_fail_alone(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> float:
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(acceptance, "median_step_ms", broken)
    status, findings = accepted(tiny_bundle, tmp_path / "out.json")
    assert (status, findings["passed"]) == (1, False)
    assert findings["faults"] == ["bench: RuntimeError: the driver is gone"]
    assert findings["line"].endswith("; FAILED: bench: RuntimeError: the driver is gone\n")
    assert findings["soak"]["puzzles"] >= 5
    status, findings = accepted(tmp_path / "nowhere.bundle", tmp_path / "out.json")
    assert (status, findings["passed"]) == (1, False)
    assert "nowhere.bundle" in findings["faults"][0]


def test_an_engine_that_says_something_else_fails(copied: Path, tmp_path: Path):
    with np.load(copied / "golden.npz") as golden:
        arrays = {**golden, "logits_SBTV": golden["logits_SBTV"] + 1}
    np.savez(copied / "golden.npz", allow_pickle=False, **arrays)
    restate(copied)
    status, findings = accepted(copied, tmp_path / "acceptance.json")
    assert (status, findings["passed"]) == (1, False)
    assert findings["faults"]
    assert findings["soak"]["puzzles"] >= 5
