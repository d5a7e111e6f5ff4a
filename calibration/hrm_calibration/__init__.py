# Imported before ONNX Runtime, because it switches off ONNX Runtime's telemetry.
import hrm_edge_runtime as hrm_edge_runtime
