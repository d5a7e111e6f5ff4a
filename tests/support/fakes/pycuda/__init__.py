"""A stand-in for PyCUDA: device memory is host memory at real addresses, a stream is a list of things to do."""
