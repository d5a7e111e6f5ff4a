"""Float16 forms whose every operation rounds stay below their gate, not only on ONNX Runtime."""

from dataclasses import replace

import numpy as np
import pytest
from bundle_tools import shipped
from cli_tools import succeeded

from hrm_edge_runtime.contract.shipped import shipped_bundles
from hrm_parity.cli import ROUNDED
from hrm_parity.cli import main as app
from hrm_parity.report import GATES
from hrm_parity.rounded import product, rounded_engine
from hrm_parity.walk import compare

MARGIN = {"rounded": 2, "rounded16": 1}
"""How many times smaller than its gate the drift must be.

Rounded after every 16 products, the large convolutions of ARC alone take more than half the gate.
"""


def largest_drift(name: str, engine_name: str) -> float:
    """Return the largest drift of the logits of any golden puzzle in segment 1."""
    bundle = shipped(name)
    golden = bundle.golden()
    engine = rounded_engine(
        bundle.graph_path("fp16"),
        bundle.manifest,
        num_slots=len(golden.tokens_BT),
        products=ROUNDED[engine_name],
    )
    report = compare(
        replace(golden, answer_SBT=golden.answer_SBT[:1]),
        engine,
        puzzle_table=bundle.puzzle_table,
        puzzle=bundle.puzzle,
        policy=bundle.manifest.halting_policy(),
    )
    return report.columns["logit_drift"].worst_S[0]


@pytest.mark.parametrize("engine_name", ROUNDED)
@pytest.mark.parametrize("name", shipped_bundles())
def test_a_shipped_float16_form_drifts_less_than_its_gate(name: str, engine_name: str):
    gate = GATES["fp16"]["golden"].first_segment["worst"]["logit_drift"]
    assert largest_drift(name, engine_name) <= gate / MARGIN[engine_name]


def test_a_float32_form_agrees_with_pytorch():
    succeeded(app, "arc-7x7", "--engine", "rounded16:fp32")


def test_a_sum_is_rounded_after_every_few_products():
    """Beyond 2048 float16 lacks odd numbers, so adding 1 has no effect."""
    ones_1K = np.ones((1, 3000), np.float16)
    assert product(ones_1K, ones_1K.T, 1).item() == 2048
    assert product(ones_1K, ones_1K.T, None).item() == 3000
