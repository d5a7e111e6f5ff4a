"""Findings kept in the bundle: `parity.json` with one entry for each pair that was compared."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.manifest import MANIFEST_NAME, BundleError, FileEntry, Manifest
from hrm_edge_runtime.parity.comparison import Findings
from hrm_host import atomic

PARITY_NAME = "parity.json"


def write_findings(bundle: Bundle, findings: Findings) -> None:
    """Adds the findings to `parity.json`, over those of the same pair on the same puzzles.

    A kill at any moment leaves a bundle that opens: the manifest gives the file up before it changes and takes it back
    afterwards. No other file is hashed anew, so that a damaged one is not taken for sound.
    """
    report = findings.report
    known = _known(bundle)
    known[f"{report.candidate} against {report.reference} on {report.puzzles}"] = findings.as_json()
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in known.items())
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    others = {name: entry for name, entry in bundle.manifest.files.items() if name != PARITY_NAME}
    _write_manifest(bundle, others)
    atomic.write_text(bundle.path / PARITY_NAME, text)
    content = text.encode()
    entry = FileEntry(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    _write_manifest(bundle, {**others, PARITY_NAME: entry})


def _known(bundle: Bundle) -> dict[str, Any]:
    if PARITY_NAME not in bundle.manifest.files:
        return {}
    file = bundle.path / PARITY_NAME
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BundleError(f"{file} is no JSON ({error}): export the bundle again.") from error
    if not isinstance(known, dict):
        raise BundleError(f"{file} holds no JSON object: export the bundle again.")
    return known


def _write_manifest(bundle: Bundle, files: dict[str, FileEntry]) -> None:
    manifest: Manifest = bundle.manifest.model_copy(update={"files": dict(sorted(files.items()))})
    atomic.write_text(bundle.path / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")
