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
from checkout import Checkout, Record, outcome, printed

PASSING = ("time", "date", "commit")  # fields of a bundle that describe the moment, not the model


def data(checkout: Checkout) -> Record:
    """Data sets made with a seed, byte for byte."""
    found: Record = {}
    for kind, options in cases.DATA.items():
        folder = checkout.work / "data" / kind
        if not folder.exists():
            build = f"build {kind} --out data/{kind} --workers 1 {options}"
            checkout.run_well("hrm-data", *build.split())
        found[kind] = digests(folder)
    return found


def training(checkout: Checkout) -> Record:
    """The losses of 200 steps under a seed, and the weights that they end with."""
    data(checkout)
    checkout.run_well("hrm-train", *cases.TRAINING.split())
    run = checkout.work / "run"
    rows = json_lines(run / "metrics.ndjson")
    validations = json_lines(run / "validation.ndjson")
    steps = sorted(run.glob("step_*"))
    weights: dict[str, str] = {}
    for step in steps:
        weights[step.name] = sha256(step / "model.safetensors")
    first = rows[0]
    return {
        "losses": [row["train"]["loss"] for row in rows],
        "weights": weights,
        "files": sorted(os.listdir(steps[-1])),
        "rows": [sorted(first), sorted(first["train"]), sorted(first["phase_ms"])],
        "validations": without(validations, ("time", "seconds")),
    }


def export(checkout: Checkout) -> Record:
    """The bundle of the checkpoint in the repository, without fields that vary between runs."""
    copy_checkpoint(checkout)
    checkout.run_well("hrm-export", *cases.EXPORT.split())
    bundle = checkout.work / "exported.bundle"
    manifest = read_json(bundle / "manifest.json")
    kept = without(manifest, (*PASSING, "files", "curves"))
    return {"files": digests(bundle), "manifest": rounded(kept, 6)}


def refused_exports(checkout: Checkout) -> Record:
    """How `hrm-export` ends if it must reject its input."""
    damage_checkpoints(checkout)
    found: Record = {}
    for name, arguments in cases.REFUSED_EXPORTS.items():
        ended = checkout.run("hrm-export", *arguments.split())
        found[name] = outcome(ended)
    return found


def damage_checkpoints(checkout: Checkout) -> None:
    """Write copies of the checkpoint with one fault each."""
    whole = copy_checkpoint(checkout)
    meta = read_json(whole / "meta.json")
    config = read_json(whole / "config.json")

    def copy(name: str, file: str) -> Path:
        folder = checkout.work / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        return folder / file

    copy("no-weights", "model.safetensors").unlink()
    copy("no-config", "config.json").unlink()
    os.truncate(copy("cut-weights", "model.safetensors"), 5000)
    config["color"] = "red"
    write_json(copy("unknown-field", "config.json"), config)
    write_json(copy("no-puzzle", "meta.json"), {})
    meta["puzzle"] = "maze-8x8"
    write_json(copy("another-puzzle", "meta.json"), meta)


def copy_checkpoint(checkout: Checkout) -> Path:
    copy = checkout.work / "checkpoint"
    if not copy.exists():
        shutil.copytree(checkout.root / "model/checkpoints/sudoku", copy)
    return copy


def bundles(checkout: Checkout) -> Record:
    """Every file of every shipped bundle, byte for byte."""
    found: Record = {}
    for name, files in shipped(checkout).items():
        found[name] = {path.name: sha256(path) for path in files}
    return found


def shipped(checkout: Checkout) -> dict[str, list[Path]]:
    """Files in git of each shipped bundle; the server adds its own step times beside them."""
    line = ["git", "-C", str(checkout.root), "ls-files", "edge_runtime/**/*.bundle/*"]
    listed = printed(checkout.run_line(line))
    found: dict[str, list[Path]] = {}
    for name in sorted(listed.splitlines()):
        path = checkout.root / name
        files = found.setdefault(path.parent.stem, [])
        files.append(path)
    return found


def parity(checkout: Checkout) -> Record:
    """Each shipped bundle against its golden traces; gaps of the last bits count as none."""
    found: Record = {}
    for name in shipped(checkout):
        ended = checkout.run("hrm-parity", name, *cases.PARITY.split())
        findings = json.loads(ended.stdout)
        # The last bit may decide which puzzle has the largest gap.
        kept = without(findings, ("puzzle", "breaks", "reasons", "passed"))
        kept = rounded(kept, 3)
        kept["gates"] = findings["gates"]
        kept["exit"] = ended.returncode
        found[name] = kept
    return found


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def json_lines(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file; of JSON files without the fields that vary between runs."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            found[name] = sha256_of_json(path)
        elif path.is_file():
            found[name] = sha256(path)
    return found


def sha256_of_json(path: Path) -> str:
    """Digest without the fields that vary and without the digests of other JSON files."""
    value = without(read_json(path), PASSING)
    if isinstance(value, dict) and isinstance(value.get("files"), dict):
        files = value["files"]
        for name in list(files):
            if name.endswith(".json"):
                del files[name]
    text = json.dumps(value)
    return hashlib.sha256(text.encode()).hexdigest()


def sha256(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha256(content).hexdigest()


def without(value: Any, keys: Sequence[str]) -> Any:
    """Without these keys and without times in milliseconds, at any depth."""
    if isinstance(value, list):
        return [without(inner, keys) for inner in value]
    if not isinstance(value, dict):
        return value
    kept: Record = {}
    for key, inner in value.items():
        if key not in keys and not key.endswith("_ms"):
            kept[key] = without(inner, keys)
    return kept


def rounded(value: Any, digits: int) -> Any:
    if isinstance(value, dict):
        return {key: rounded(inner, digits) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner, digits) for inner in value]
    if isinstance(value, float):
        return round(value, digits)
    return value
