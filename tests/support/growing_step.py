"""A step graph that takes much memory."""

from echo_bundle import ECHO_STEP

GROWING_STEP = ECHO_STEP.replace(
    "q_halt_B = Identity (halt_margin_B)",
    """cells_BT1 = Unsqueeze (tokens_float_BT, axis_2)
  many_BM1 = Concat <axis = 1> (SIXTEEN cells_BT1)
  more_BN1 = Concat <axis = 1> (SIXTEEN many_BM1)
  more_B1N = Transpose <perm = [0, 2, 1]> (more_BN1)
  products_BNN = MatMul (more_BN1, more_B1N)
  sum_BN = ReduceSum <keepdims = 0> (products_BNN, axis_2)
  q_halt_B = ReduceSum <keepdims = 0> (sum_BN, axis_1)""",
)
for value in ("cells_BT1", "many_BM1"):
    GROWING_STEP = GROWING_STEP.replace(f"SIXTEEN {value}", ", ".join([value] * 16))
"""A segment over four slots holds 256 MiB."""
