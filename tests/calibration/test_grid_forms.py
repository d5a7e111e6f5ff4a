"""The forms of a grid's graph, whose blocks are convolutions. Shapes: B rows, O outputs."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from calibration_tools import run
from export_tools import random_inputs, relational_sizes, small_model

from hrm_calibration.half import float32_nodes, half_graph
from hrm_calibration.int8 import for_cpus
from hrm_calibration.quantize import call_sites, quantize
from hrm_export.segment import segment_graph

MODEL = small_model(**relational_sizes("maze-8x8"), low_layers=1)
GRAPH = segment_graph(MODEL)
SITES = call_sites(GRAPH)
CLIPS_NOTHING = {site.name: 0.5 for site in SITES}
FORMS = {
    "fp32": GRAPH,
    "fp16": half_graph(GRAPH, float32_nodes(GRAPH, {})),
    "int8": for_cpus(GRAPH, CLIPS_NOTHING, []),
}


def test_a_block_of_a_grid_is_two_convolutions_and_both_are_call_sites() -> None:
    operators = Counter(node.op_type for node in GRAPH.graph.node)
    num_blocks = operators["Sqrt"]
    assert operators["Conv"] == 2 * num_blocks == len(SITES)
    assert not {"Slice", "Concat", "Pad"} & set(operators)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_same_bits_in_every_batch(form: str) -> None:
    inputs = random_inputs(MODEL, 8)
    together = run(FORMS[form], inputs, optimized=True)
    for size in (1, 3):
        few = {name: rows_B[:size] for name, rows_B in inputs.items()}
        for name, rows_B in run(FORMS[form], few, optimized=True).items():
            assert np.array_equal(rows_B, together[name][:size]), name


def test_the_form_for_cpus_is_the_signed_function_if_nothing_is_clipped() -> None:
    signed = quantize(GRAPH, CLIPS_NOTHING, weight_bits=7)
    inputs = random_inputs(MODEL, 3)
    ours = run(FORMS["int8"], inputs)
    for name, values in run(signed, inputs).items():
        assert np.array_equal(values, ours[name]), name


def test_every_convolution_for_cpus_runs_in_integers(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    options.log_severity_level = 3
    text = FORMS["int8"].SerializeToString()
    ort.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    fused = onnx.load(tmp_path / "fused.onnx")
    operators = Counter(node.op_type for node in fused.graph.node)
    assert operators["QLinearConv"] == operators["MatMulIntegerToFloat"] == len(SITES) / 2
    assert operators["QuantizeLinear"] == len(SITES) / 2
    assert not {"Conv", "FusedConv", "Transpose"} & set(operators)
