"""The edge runtime: opens a bundle, steps puzzles in slots until they halt, answers over HTTP, without torch.

Whoever imports it switches ONNX Runtime's telemetry off. Since 1.29 its wheels for Linux give the machine an identifier
and report sessions and models to their maker; a board in somebody's house reports to nobody. Python's own switch
(`disable_telemetry_events`) still lets the first report out, the variable read at import does not.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
