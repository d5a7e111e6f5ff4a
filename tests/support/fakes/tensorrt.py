"""NVIDIA's bindings if FAKE_TENSORRT_BINDINGS names the folder of their wheel, else a stand-in."""

import importlib
import os
import sys

if os.environ.get("FAKE_TENSORRT_BINDINGS"):
    sys.modules[__name__] = importlib.import_module("nvidia_bindings").module()
else:
    sys.modules[__name__] = importlib.import_module("stand_in_tensorrt")
