"""A bundle is written whole or not at all, and only where its graph says what PyTorch says."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from export_tools import random_questions, small_model
from onnx import numpy_helper

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_edge_runtime.parity import replay
from hrm_export.golden import golden_traces
from hrm_export.packing import Contents, ParityError, provenance, write_bundle
from hrm_export.segment import segment_graph
from hrm_puzzles import registry


def small_contents() -> Contents:
    model = small_model(max_segments=6)
    return Contents(
        name="small",
        model=model,
        graph=segment_graph(model),
        puzzle=registry.get("sudoku-4x4"),
        policy=HaltingPolicy(kind="learned", threshold=0.25, max_segments=6),
        golden=golden_traces(model, random_questions(model, 16), 0.25, 4)[0],
        num_candidates=4,
        identifiers=["<blank>", "one", "two"],
        meta={"step": 7, "puzzle": "sudoku-4x4", "best_loss": float("inf"), "final": True, "nested": {}},
    )


def test_what_is_written_opens_and_replays(tmp_path: Path) -> None:
    contents = small_contents()
    report = write_bundle(tmp_path / "small.bundle", contents)
    bundle = Bundle.open(tmp_path / "small.bundle")
    assert report.passes()
    assert replay(bundle, lambda slots: engine_from_bundle(bundle, num_slots=slots, want_logits=True)).passes()
    assert np.array_equal(bundle.puzzle_table, contents.model.puzzle_table.numpy())
    assert bundle.manifest.halting_policy() == contents.policy
    assert set(bundle.manifest.files) == {
        *("step.fp32.onnx", "golden.npz", "identifiers.json", "parity.json", "puzzle_table.npy")
    }


def test_the_same_checkpoint_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_bundle(tmp_path / name, small_contents())
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "other" / file.name).read_bytes(), file.name


def test_provenance_holds_what_the_manifest_can_say() -> None:
    said = provenance(small_contents())
    assert said["step"] == 7
    assert said["num_parameters"] == sum(tensor.numel() for tensor in small_model().parameters()) + 2 * 32
    assert {"exported_with_torch", "exported_with_onnxruntime"} <= set(said)
    assert not {"best_loss", "final", "nested"} & set(said)


@pytest.mark.parametrize("name", ["lm_head.weight", "q_head.weight", "low_level.layers.1.self_attn.qkv_proj.weight"])
def test_a_corrupted_graph_is_refused_and_nothing_is_left_behind(tmp_path: Path, name: str) -> None:
    contents = small_contents()
    tensor = next(tensor for tensor in contents.graph.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.01), name))
    with pytest.raises(ParityError, match="differs from PyTorch"):
        write_bundle(tmp_path / "small.bundle", contents)
    assert not list(tmp_path.iterdir())


def test_a_graph_for_another_model_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    contents = replace(small_contents(), graph=onnx.ModelProto())
    with pytest.raises(ValueError, match="does not load"):
        write_bundle(tmp_path / "small.bundle", contents)
    assert not list(tmp_path.iterdir())


def test_a_bundle_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "small.bundle").mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        write_bundle(tmp_path / "small.bundle", small_contents())
    assert not list((tmp_path / "small.bundle").iterdir())


WRITE_FOR_EVER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import torch
from test_packing import small_contents
from hrm_export.packing import write_bundle
torch.set_num_threads(1)
contents = small_contents()
for number in range(10_000):
    write_bundle(Path(sys.argv[2]) / f"{number}.bundle", contents)
    print(number, flush=True)
"""


def test_a_kill_during_writing_leaves_no_half_bundle(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline().strip().isdigit()
        while not list(tmp_path.glob(".*")):  # the next one is under way
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    written = sorted(tmp_path.glob("*.bundle"))
    assert len(written) >= 3
    for path in written:
        Bundle.open(path)
