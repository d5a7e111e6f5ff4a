"""A stand-in for PyCUDA over `fake_gpu`."""
