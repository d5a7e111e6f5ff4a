"""The edge runtime opens bundles, runs puzzles in slots until they halt, and answers over HTTP.

It never imports torch. Importing it switches ONNX Runtime's telemetry off. Since 1.29 the Linux
wheels assign the machine an identifier and report sessions and models to the vendor.
`disable_telemetry_events` acts only after the first report; the environment variable, read at
import, prevents it.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
