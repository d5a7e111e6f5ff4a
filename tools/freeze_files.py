"""What the freeze records of files: data sets, a training, an export, bundles and their parity."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import freeze_cases as cases
from checkout import Checkout, outcome, printed

PASSING = ("time", "date", "commit")  # fields of a bundle that describe the moment, not the model


def data(checkout: Checkout) -> dict[str, Any]:
    """Data sets made with a seed, byte for byte."""
    found: dict[str, Any] = {}
    for kind, options in cases.DATA.items():
        folder = checkout.work / "data" / kind
        if not folder.exists():
            build = f"build {kind} --out data/{kind} --workers 1 {options}"
            checkout.run_well("hrm-data", *build.split())
        found[kind] = digests(folder)
    return found


def training(checkout: Checkout) -> dict[str, Any]:
    """The losses of 200 steps under a seed, and the weights that they end with."""
    data(checkout)
    checkout.run_well("hrm-train", *cases.TRAINING.split())
    run = checkout.work / "run"
    rows = json_lines(run / "metrics.ndjson")
    validations = json_lines(run / "validation.ndjson")
    steps = sorted(run.glob("step_*"))
    return {
        "losses": [row["train"]["loss"] for row in rows],
        "weights": {step.name: sha256(step / "model.safetensors") for step in steps},
        "files": sorted(path.name for path in steps[-1].iterdir()),
        "rows": [sorted(rows[0]), sorted(rows[0]["train"]), sorted(rows[0]["phase_ms"])],
        "validations": [without(row, ("time", "seconds")) for row in validations],
    }


def export(checkout: Checkout) -> dict[str, Any]:
    """The bundle of the checkpoint in the repository, without what describes the moment."""
    copy_checkpoint(checkout)
    checkout.run_well("hrm-export", *cases.EXPORT.split())
    bundle = checkout.work / "exported.bundle"
    manifest = rounded(json.loads((bundle / "manifest.json").read_text()), 6)
    return {
        "files": digests(bundle),
        "manifest": without(manifest, (*PASSING, "files", "curves")),
    }


def refused_exports(checkout: Checkout) -> dict[str, Any]:
    """How `hrm-export` ends if it must not export."""
    damage_checkpoints(checkout)
    found: dict[str, Any] = {}
    for name, arguments in cases.REFUSED_EXPORTS.items():
        found[name] = outcome(checkout.run("hrm-export", *arguments.split()))
    return found


def damage_checkpoints(checkout: Checkout) -> None:
    """Write copies of the checkpoint with one fault each."""
    whole = copy_checkpoint(checkout)
    meta = json.loads((whole / "meta.json").read_text())
    config = json.loads((whole / "config.json").read_text())

    def copy(name: str, file: str) -> Path:
        folder = checkout.work / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        return folder / file

    copy("no-weights", "model.safetensors").unlink()
    copy("no-config", "config.json").unlink()
    os.truncate(copy("cut-weights", "model.safetensors"), 5000)
    copy("unknown-field", "config.json").write_text(json.dumps({**config, "colour": "red"}))
    copy("no-puzzle", "meta.json").write_text("{}")
    copy("another-puzzle", "meta.json").write_text(json.dumps({**meta, "puzzle": "maze-8x8"}))


def copy_checkpoint(checkout: Checkout) -> Path:
    copy = checkout.work / "checkpoint"
    if not copy.exists():
        shutil.copytree(checkout.root / "model/checkpoints/sudoku", copy)
    return copy


def bundles(checkout: Checkout) -> dict[str, Any]:
    """Every file of every shipped bundle, byte for byte."""
    found: dict[str, Any] = {}
    for name, files in shipped(checkout).items():
        found[name] = {path.name: sha256(path) for path in files}
    return found


def shipped(checkout: Checkout) -> dict[str, list[Path]]:
    """Files in git of each shipped bundle; the server adds its own step times beside them."""
    line = ["git", "-C", str(checkout.root), "ls-files", "edge_runtime/**/*.bundle/*"]
    listed = printed(checkout.run_line(line)).splitlines()
    found: dict[str, list[Path]] = {}
    for path in sorted(checkout.root / name for name in listed):
        found.setdefault(path.parent.stem, []).append(path)
    return found


def parity(checkout: Checkout) -> dict[str, Any]:
    """Each shipped bundle against its golden traces; gaps of the last bits count as none."""
    found: dict[str, Any] = {}
    for name in shipped(checkout):
        options = ("--engine", "cpu:fp32", "--threads", "1", "--json")
        ended = checkout.run("hrm-parity", name, *options)
        findings = json.loads(ended.stdout)
        # The last bit may decide which puzzle has the largest gap.
        kept = without(rounded(findings, 3), ("puzzle", "breaks", "reasons", "passed"))
        found[name] = {**kept, "gates": findings["gates"], "exit": ended.returncode}
    return found


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file; of JSON files without what describes the moment."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json":
            found[str(path.relative_to(folder))] = sha256_of_json(path)
        elif path.is_file():
            found[str(path.relative_to(folder))] = sha256(path)
    return found


def sha256_of_json(path: Path) -> str:
    """Digest without passing fields, nor the digests of other JSON files that it may list."""
    value = without(json.loads(path.read_bytes()), PASSING)
    if isinstance(value, dict) and isinstance(value.get("files"), dict):
        files = value["files"].items()
        value["files"] = {name: entry for name, entry in files if not name.endswith(".json")}
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def without(value: Any, keys: Sequence[str]) -> Any:
    """Without these keys and without times in milliseconds, at any depth."""
    if isinstance(value, list):
        return [without(inner, keys) for inner in value]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for key, inner in value.items():
        if key not in keys and not key.endswith("_ms"):
            kept[key] = without(inner, keys)
    return kept


def rounded(value: Any, digits: int) -> Any:
    if isinstance(value, dict):
        return {key: rounded(inner, digits) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner, digits) for inner in value]
    return round(value, digits) if isinstance(value, float) else value
