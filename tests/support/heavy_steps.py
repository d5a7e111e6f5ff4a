"""Step graphs that take much memory, or much time."""

from echo_bundle import ECHO_STEP

NUM_ROUNDS = 60


def _with_products(rest: str) -> str:
    """The echo with products of N x N numbers for each puzzle, N = 4096: 64 MiB."""
    sixteen_cells = ", ".join(["cells_BT1"] * 16)
    sixteen_many = ", ".join(["many_BM1"] * 16)
    return ECHO_STEP.replace(
        "q_halt_B = Identity (halt_margin_B)",
        f"""cells_BT1 = Unsqueeze (tokens_float_BT, axis_2)
  many_BM1 = Concat <axis = 1> ({sixteen_cells})
  more_BN1 = Concat <axis = 1> ({sixteen_many})
  more_B1N = Transpose <perm = [0, 2, 1]> (more_BN1)
  round_0 = MatMul (more_BN1, more_B1N)
  {rest}
  sum_BN = ReduceSum <keepdims = 0> (last_BNN, axis_2)
  q_halt_B = ReduceSum <keepdims = 0> (sum_BN, axis_1)""",
    )


def _rounds() -> str:
    lines: list[str] = []
    for number in range(1, NUM_ROUNDS + 1):
        lines.append(f"round_{number} = MatMul (round_{number - 1}, round_0)")
    lines.append(f"last_BNN = Identity (round_{NUM_ROUNDS})")
    return "\n  ".join(lines)


GROWING_STEP = _with_products("last_BNN = Identity (round_0)")
"""A segment over four slots holds 256 MiB."""
LONG_STEP = _with_products(_rounds())
"""A segment of one puzzle takes a minute of CPU time or more."""
