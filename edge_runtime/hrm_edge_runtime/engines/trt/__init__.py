"""The step graph on TensorRT and CUDA."""
