"""Everything that training needs looked at; `hrm-doctor` (in edge_runtime) finds it by an entry point and shows it."""

from __future__ import annotations

import importlib.util

from hrm_train.doctor import gpu, kernel_log, software, system
from hrm_train.doctor.probe import Finding, Probe


def findings() -> list[Finding]:
    """The findings on this machine; where nobody trains, only that."""
    if importlib.util.find_spec("torch") is None:
        text = "not looked at, since PyTorch is not installed: pip install 'hrm-edge[train]'"
        return [Finding(name="training", level="ok", text=text)]
    return examine(Probe(), software.look())


def examine(probe: Probe, installed: software.Software) -> list[Finding]:
    """What the doctor looks at, in the order it is shown."""
    return [
        *software.findings(probe, installed),
        *gpu.findings(probe),
        *kernel_log.findings(probe),
        *system.findings(probe),
    ]
