"""The training part of `hrm-doctor` (entry point of `hrm_edge.doctor`): PyTorch, and the machine it runs on."""

import importlib.util
import math
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hrm_host.board import Host
from hrm_host.doctor import Finding, fail, ok, python_finding, warn
from hrm_train import doctor_machine

CUDA_BUILD = "install a CUDA build of PyTorch (the selector on pytorch.org prints the command)"


@dataclass(frozen=True, kw_only=True)
class TrainingSoftware:
    python: tuple[int, ...]
    torch: str | None
    torch_cuda: str | None  # the version PyTorch was built for
    sees_gpu: bool
    architectures: tuple[str, ...]  # of PyTorch's GPU kernels
    has_triton: bool
    compiler: str | None


def findings() -> list[Finding]:
    """The findings on this machine, or only that it is not used for training."""
    if importlib.util.find_spec("torch") is None:
        return [ok("training", "not looked at, since PyTorch is not installed: pip install 'hrm-edge[train]'")]
    machine, software = Host(), look()
    found = [*software_findings(machine, software), *doctor_machine.findings(machine, Path.cwd())]
    return [*found, *(attention() if software.torch else ())]


def look() -> TrainingSoftware:
    """This process's own software; a PyTorch that cannot be imported counts as none."""
    try:
        import torch
    except (ImportError, OSError):
        torch = None
    compilers = ("cl",) if platform.system() == "Windows" else ("cc", "gcc", "clang")
    return TrainingSoftware(
        python=tuple(sys.version_info[:3]),
        torch=torch.__version__ if torch else None,
        torch_cuda=torch.version.cuda if torch else None,
        sees_gpu=bool(torch and torch.cuda.is_available()),
        architectures=tuple(torch.cuda.get_arch_list()) if torch else (),
        has_triton=importlib.util.find_spec("triton") is not None,
        compiler=next(filter(None, map(shutil.which, compilers)), None),
    )


def attention() -> Iterator[Finding]:
    """A trial of what every model is made of, forward and backward over 900 tokens; the first one warms up."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    seconds = math.inf
    try:
        for _ in range(3):
            begin = time.perf_counter()
            query, key, value = torch.randn(3, 1, 8, 900, 64, device=device, dtype=dtype, requires_grad=True)
            torch.nn.functional.scaled_dot_product_attention(query, key, value).sum().backward()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds = min(seconds, time.perf_counter() - begin)
    except RuntimeError as error:
        yield fail("attention", f"fails on {device}: {str(error).splitlines()[0]}", CUDA_BUILD)
        return
    yield ok("attention", f"{1000 * seconds:.1f} ms for 900 tokens, forward and backward, {dtype} on {device}")


def software_findings(machine: Host, software: TrainingSoftware) -> Iterator[Finding]:
    """`nvidia-smi` without options prints the newest CUDA version that the driver supports."""
    driver_cuda = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", machine.ask(("nvidia-smi",)) or "")
    capability = (machine.ask(("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")) or "").split()
    yield python_finding(software.python)
    yield torch_finding(software, (int(driver_cuda[1]), int(driver_cuda[2])) if driver_cuda else None)
    if software.sees_gpu and capability:
        yield architecture(software, capability[0])
    if software.torch is None:
        return
    needs: dict[str, str] = {}
    if driver_cuda and not software.has_triton:
        needs["triton"] = "pip install triton (Windows: triton-windows)"
    if software.compiler is None:
        needs["compiler"] = "sudo apt install build-essential (Windows: the Visual Studio build tools)"
    if needs:
        text = f"{' and '.join(needs)} missing: training runs, but uncompiled and slower"
        yield warn("torch.compile", text, "; ".join(needs.values()))
    else:
        yield ok("torch.compile", f"compiler{' and Triton' if software.has_triton else ''} found")


def torch_finding(software: TrainingSoftware, driver_cuda: tuple[int, int] | None) -> Finding:
    if software.torch is None:
        return fail("PyTorch", "missing", "pip install 'hrm-edge[train]'")
    said = f"{software.torch}, built for {'CUDA ' + software.torch_cuda if software.torch_cuda else 'the CPU'}"
    if driver_cuda is None or software.sees_gpu:
        return ok("PyTorch", said)
    if software.torch_cuda is None:
        return fail("PyTorch", f"{said}, but there is a GPU", CUDA_BUILD)
    is_newer = tuple(map(int, software.torch_cuda.split(".")[:2])) > driver_cuda
    remedy = "update the NVIDIA driver" if is_newer else "check CUDA_VISIBLE_DEVICES and the container's --gpus"
    said = f"{said}, the driver supports CUDA {driver_cuda[0]}.{driver_cuda[1]}, and PyTorch sees no GPU"
    return fail("PyTorch", said, remedy)


def architecture(software: TrainingSoftware, capability: str) -> Finding:
    """Kernels run on cards of the same major version from their minor version on; PTX (compute_*) on any newer card."""
    major, minor = map(int, capability.split("."))
    for kernel in software.architectures:
        kind, _, digits = kernel.partition("_")
        built = re.match(r"(\d+)(\d)", digits)
        if built is None:
            continue
        of = int(built[1]), int(built[2])
        if (of[0] == major and of[1] <= minor) or (kind == "compute" and of <= (major, minor)):
            return ok("GPU kernels", f"{kernel} serves compute capability {capability}")
    text = f"PyTorch has no kernels for compute capability {capability} (it has {', '.join(software.architectures)})"
    return fail("GPU kernels", text, f"{CUDA_BUILD}, for a newer CUDA version")
