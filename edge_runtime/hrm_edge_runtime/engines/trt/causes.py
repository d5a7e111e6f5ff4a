"""Why a TensorRT build failed, and what to do about it; `cause_of` decides for all of the program.

A cause that stays until something changes is remembered, so that a service does not repeat the
build at every start; see `failures`.
"""

import re
import signal
from collections.abc import Mapping
from typing import Literal

from hrm_edge_runtime.engines.engine import EngineUnavailableError

Cause = Literal["memory", "wrong GPU", "rejected", "machine", "stopped", "unknown"]
KILLED = 9
SIGNALS = {
    4: "an instruction that this processor lacks",
    6: "an error that a native library found",
    7: "a memory error in a native library",
    KILLED: "usually out of memory",
    11: "a memory error in a native library",
}
"""What usually sends a signal to a build."""
NAMES = {one.value: one.name for one in signal.Signals}
STOPPED_BY = (1, 2, 15)  # hang-up, interrupt and terminate: somebody stopped the build
MARKS: Mapping[Cause, str] = {
    "memory": r"out[ _]?of[ _]?memory|bad_alloc|(cannot|could not|failed to) allocate|"
    r"(insufficient|not enough) memory|cudaErrorMemoryAllocation|needs? more memory",
    "wrong GPU": r"SM \d+ is not supported|target GPU|not compatible with|no kernel image|"
    r"NO_BINARY_FOR_GPU|compute capability [\d.]+ is not supported|unsupported (GPU|SM)",
    "machine": r"CUDA[ _](initialization|driver|error|runtime|failure)|cuInit|cudaError|"
    r"no CUDA-capable device|driver version is insufficient|"
    r"illegal memory access|launch failure",
}
"""Words of NVIDIA's libraries by cause. The first cause with a match counts."""
REMEDIES: Mapping[Cause, str] = {
    "memory": "stop the desktop (sudo systemctl isolate multi-user.target), add swap, or lower "
    "--workspace-mb",
    "wrong GPU": "use the TensorRT of this JetPack (apt-cache policy python3-libnvinfer), without "
    "one from pip before it, or choose --engine cpu",
    "rejected": "export the bundle again, or choose --engine tensorrt:fp32 or cpu",
    "machine": "restart the board, update its driver, or choose --engine cpu; "
    "`hrm-doctor --device` tests the driver",
    "stopped": "start it again",
    "unknown": "try it again, or choose --engine cpu; `hrm-doctor --device` tests the driver",
}


class TensorRTError(EngineUnavailableError):
    """TensorRT or CUDA fails; `cause` decides what is tried next and what is remembered."""

    def __init__(self, problem: str, cause: Cause, remedy: str = "") -> None:
        super().__init__(problem, cause, remedy)
        self.problem = problem
        self.cause: Cause = cause
        self.remedy = remedy or REMEDIES[cause]

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}."


def cause_of(words: str, status: int = 0) -> Cause:
    """The cause by the words of a library and the status of its process, negative for a signal."""
    if -status in STOPPED_BY:
        return "stopped"
    if -status == KILLED:
        return "memory"
    for cause, pattern in MARKS.items():
        if re.search(pattern, words, re.IGNORECASE):
            return cause
    return "unknown"


def describe_status(status: int) -> str:
    """The exit status of a process in words; negative numbers are signals."""
    if status >= 0:
        return f"ended with status {status}"
    number = -status
    killed = f"was killed by signal {number} ({NAMES.get(number, 'unknown')})"
    if number in SIGNALS:
        return f"{killed}, {SIGNALS[number]}"
    return killed
