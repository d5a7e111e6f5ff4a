"""The device check of `hrm-doctor --device`: an entry point of the group `hrm_edge.device`."""

import json
import subprocess
import sys
from typing import Any

CHECK = "hrm_parity.device_check"

Step = dict[str, Any]


def try_device() -> list[Step]:
    """Run the TensorRT check in its own process, because a driver can crash it.

    Each step has `step`, `level` ("ok" or "fail") and `found`.
    """
    command = [sys.executable, "-m", CHECK]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    steps = _last_report_of_each_step(done.stdout)
    for step in steps:
        if step["level"] == "begun":
            step["level"] = "fail"
            step["found"] = f"the process ended here with status {done.returncode}"
    if not steps:
        return [{"step": "start", "level": "fail", "found": f"status {done.returncode}"}]
    return steps


def _last_report_of_each_step(output: str) -> list[Step]:
    """A step reports when it begins and when it ends; other lines come from libraries."""
    steps: dict[str, Step] = {}
    for line in output.splitlines():
        if line.startswith('{"step"'):
            step = json.loads(line)
            steps[step["step"]] = step
    return list(steps.values())
