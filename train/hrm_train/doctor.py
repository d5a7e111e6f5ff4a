"""The training part of `hrm-doctor` (entry point of `hrm_edge.doctor`): PyTorch and its machine."""

import importlib.util
import math
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hrm_host.doctor import Finding, fail, ok, python_finding, warn
from hrm_host.machine import Host
from hrm_train import doctor_machine

TRIALS = 3  # repetitions; the first one warms up
ATTENTION_SHAPE = (3, 1, 8, 900, 64)  # query, key and value; batch, heads, tokens, width
NEWEST_CUDA = re.compile(r"CUDA Version:\s*(\d+)\.(\d+)")

Version = tuple[int, int]

CUDA_BUILD = "install a CUDA build of PyTorch (the selector on pytorch.org prints the command)"


@dataclass(frozen=True, kw_only=True)
class TrainingSoftware:
    python: tuple[int, ...]
    torch: str | None
    torch_cuda: str | None  # CUDA version that PyTorch was built for
    sees_gpu: bool
    has_triton: bool
    compiler: str | None


def findings() -> list[Finding]:
    """The findings on this machine, or a single one: it is not used for training."""
    if importlib.util.find_spec("torch") is None:
        text = "not checked, because PyTorch is missing: pip install 'hrm-edge[train]'"
        return [ok("training", text)]
    machine = Host()
    software = look()
    found = [*software_findings(machine, software), *doctor_machine.findings(machine, Path.cwd())]
    if software.torch:
        found += attention()
    return found


def look() -> TrainingSoftware:
    """The software of this process; a PyTorch that cannot be imported counts as missing."""
    software = TrainingSoftware(
        python=tuple(sys.version_info[:3]),
        torch=None,
        torch_cuda=None,
        sees_gpu=False,
        has_triton=importlib.util.find_spec("triton") is not None,
        compiler=_compiler(),
    )
    try:
        import torch
    except (ImportError, OSError):
        return software
    return replace(
        software,
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        sees_gpu=torch.cuda.is_available(),
    )


def _compiler() -> str | None:
    """The path of the first C compiler."""
    names = ("cc", "gcc", "clang")
    if platform.system() == "Windows":
        names = ("cl",)
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    return None


def attention() -> Iterator[Finding]:
    """Runs attention, which every model uses, forward and backward over 900 tokens.

    It fails if PyTorch lacks kernels for the card.
    """
    import torch

    device = "cpu"
    dtype = torch.float32
    if torch.cuda.is_available():
        device = "cuda"
        dtype = torch.bfloat16
    seconds = math.inf
    try:
        for _ in range(TRIALS):
            begin = time.perf_counter()
            values = torch.randn(ATTENTION_SHAPE, device=device, dtype=dtype, requires_grad=True)
            query, key, value = values
            attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            attended.sum().backward()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds = min(seconds, time.perf_counter() - begin)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        yield fail("attention", f"fails on {device}: {reason}", CUDA_BUILD)
        return
    speed = f"{1000 * seconds:.1f} ms for 900 tokens, forward and backward, {dtype} on {device}"
    yield ok("attention", speed)


def software_findings(machine: Host, software: TrainingSoftware) -> Iterator[Finding]:
    """Python, PyTorch, and what torch.compile needs."""
    driver_cuda = _driver_cuda(machine)
    yield python_finding(software.python)
    yield torch_finding(software, driver_cuda)
    if software.torch is not None:
        yield _compile_finding(software, has_gpu=driver_cuda is not None)


def _driver_cuda(machine: Host) -> Version | None:
    """The newest CUDA version that the driver supports; `nvidia-smi` prints it."""
    found = NEWEST_CUDA.search(machine.ask(("nvidia-smi",)) or "")
    if found is None:
        return None
    return int(found[1]), int(found[2])


def _compile_finding(software: TrainingSoftware, *, has_gpu: bool) -> Finding:
    needs: dict[str, str] = {}
    if has_gpu and not software.has_triton:
        needs["triton"] = "pip install triton (Windows: triton-windows)"
    if software.compiler is None:
        needs["compiler"] = (
            "sudo apt install build-essential (Windows: the Visual Studio build tools)"
        )
    if needs:
        text = f"{' and '.join(needs)} missing: training runs, but uncompiled and slower"
        return warn("torch.compile", text, "; ".join(needs.values()))
    if software.has_triton:
        return ok("torch.compile", "compiler and Triton found")
    return ok("torch.compile", "compiler found")


def torch_finding(software: TrainingSoftware, driver_cuda: Version | None) -> Finding:
    """Whether PyTorch is installed and uses the GPU."""
    if software.torch is None:
        return fail("PyTorch", "missing", "pip install 'hrm-edge[train]'")
    target = "the CPU"
    if software.torch_cuda:
        target = f"CUDA {software.torch_cuda}"
    build = f"{software.torch}, built for {target}"
    if driver_cuda is None or software.sees_gpu:
        return ok("PyTorch", build)
    if software.torch_cuda is None:
        return fail("PyTorch", f"{build}, but there is a GPU", CUDA_BUILD)
    remedy = "check CUDA_VISIBLE_DEVICES and the container's --gpus"
    major, minor = software.torch_cuda.split(".")[:2]
    if (int(major), int(minor)) > driver_cuda:
        remedy = "update the NVIDIA driver, or install a PyTorch build for its CUDA, such as cu126"
    supported = f"{driver_cuda[0]}.{driver_cuda[1]}"
    text = f"{build}, the driver supports CUDA {supported}, and PyTorch sees no GPU"
    return fail("PyTorch", text, remedy)
