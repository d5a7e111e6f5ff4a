"""Shipped bundles, bundles to change, and packages that look installed."""

from functools import cache
from pathlib import Path

import onnx

from hrm_edge_runtime.contract.archive import Archive
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import read_manifest, write_manifest
from hrm_edge_runtime.contract.shipped import find_bundle


@cache
def shipped(name: str) -> Bundle:
    return Bundle.open(find_bundle(name))


def restate(bundle: Path, **changes: object) -> None:
    """Change the manifest and let its hashes match the files again."""
    fields = read_manifest(bundle).model_dump(exclude={"files"})
    write_manifest(bundle, **{**fields, **changes})


def archived(bundle: Path) -> bytes:
    """The bundle as a client sends it."""
    archive = Archive(bundle)
    body = b"".join(archive.pieces())
    assert len(body) == archive.num_bytes
    return body


def turn_head(bundle: Path) -> onnx.ModelProto:
    """The graph of a bundle whose head says the opposite; its golden traces do not hold."""
    turned = onnx.load(bundle / "step.fp32.onnx")
    head = next(tensor for tensor in turned.graph.initializer if tensor.name == "head_DV")
    opposite = -onnx.numpy_helper.to_array(head)
    head.CopyFrom(onnx.numpy_helper.from_array(opposite, head.name))
    return turned


def install(folder: Path, entry_points: str) -> None:
    """Let a folder on Python's path pass for an installed package with these entry points."""
    info = folder / "plug_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
