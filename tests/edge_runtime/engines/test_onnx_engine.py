"""The ONNX Runtime engine over a real graph: moved slots, logits, and graphs that it rejects.

`test_isolation.py` shows on the shipped models that slots do not influence each other.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest

from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.engines.onnx import OnnxEngine

RNG = np.random.default_rng(3)
TOKENS = RNG.integers(0, 6, (3, 16), dtype=np.int32)
VECTORS = RNG.normal(size=(3, 8)).astype(np.float32)


def engine_of(graph: Path, num_slots: int) -> OnnxEngine:
    return OnnxEngine(graph, num_slots=num_slots, num_threads=1, want_logits=True)


def load(engine: OnnxEngine, slot: int, puzzle: int) -> None:
    engine.load(slot, TOKENS[puzzle], VECTORS[puzzle])


def trace(
    engine: OnnxEngine, slot: int, num_active: int, num_segments: int
) -> list[tuple[object, ...]]:
    """What a slot answers in each of its next segments, as plain bytes and numbers."""
    said: list[tuple[object, ...]] = []
    for _ in range(num_segments):
        output = engine.step(num_active)
        assert output.logits_BTV is not None
        answer = output.answer_BT[slot].tobytes()
        logits = output.logits_BTV[slot].tobytes()
        said.append((answer, float(output.halt_margin_B[slot]), logits))
    return said


def test_a_moved_slot_goes_on_where_it_stood(tiny_graph: Path) -> None:
    still = engine_of(tiny_graph, 3)
    moved = engine_of(tiny_graph, 3)
    for engine in (still, moved):
        for slot in range(3):
            load(engine, slot, slot)
        engine.step(3)
    moved.move(2, 0)
    assert trace(moved, 0, 2, 4) == trace(still, 2, 3, 4)


def test_a_slot_moved_before_its_first_segment_is_still_fresh(tiny_graph: Path) -> None:
    engine = engine_of(tiny_graph, 2)
    alone = engine_of(tiny_graph, 1)
    load(engine, 0, 1)
    engine.step(1)
    load(engine, 1, 2)
    engine.move(1, 0)
    load(alone, 0, 2)
    assert trace(engine, 0, 1, 3) == trace(alone, 0, 1, 3)


def test_logits_are_handed_out_only_on_request(tiny_graph: Path) -> None:
    engine = OnnxEngine(tiny_graph, num_slots=1, num_threads=1)
    load(engine, 0, 0)
    assert engine.step(1).logits_BTV is None


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step.onnx").write_bytes(b"no graph at all")
    with pytest.raises(BundleError, match="does not load"):
        OnnxEngine(tmp_path / "step.onnx", num_slots=1)


def test_a_graph_without_a_step_graphs_outputs_is_refused(tiny_graph: Path, tmp_path: Path) -> None:
    model = onnx.load(tiny_graph)
    del model.graph.output[-1]
    onnx.save(model, tmp_path / "step.onnx")
    with pytest.raises(BundleError, match="lacks logits_BTV"):
        OnnxEngine(tmp_path / "step.onnx", num_slots=1)


def test_a_graph_with_a_fixed_batch_is_refused(tiny_graph: Path, tmp_path: Path) -> None:
    model = onnx.load(tiny_graph)
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "step.onnx")
    with pytest.raises(BundleError, match="open batch axis"):
        OnnxEngine(tmp_path / "step.onnx", num_slots=1)
