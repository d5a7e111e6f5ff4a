# Before ONNX Runtime, whose telemetry it switches off.
import hrm_edge_runtime as hrm_edge_runtime
