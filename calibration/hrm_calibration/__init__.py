import hrm_edge_runtime  # noqa: F401  before ONNX Runtime, whose telemetry it switches off
