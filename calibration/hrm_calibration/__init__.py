# Imported before ONNX Runtime, because it switches off ONNX Runtime's telemetry.
import hrm_edge_runtime as hrm_edge_runtime

INT8_BUDGET = 0.005
"""Share of exact solves that INT8 may lose by default."""
