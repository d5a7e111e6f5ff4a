"""Compares engines, judges builds of TensorRT, tries bundles and accepts devices."""

import sys

BUILD_COMMAND = (sys.executable, "-m", "hrm_parity.trt_build")
"""Builds TensorRT engines and judges them; whoever needs one passes it to `factory.prepare`."""
