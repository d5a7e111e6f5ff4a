"""A stand-in for the folder of NVIDIA's cuda-python."""
