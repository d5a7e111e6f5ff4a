"""A stand-in for cuda-bindings over `fake_gpu`."""

__version__ = "12.9.5"
