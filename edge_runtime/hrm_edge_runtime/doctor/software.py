"""Python, and what runs engines here: ONNX Runtime, or TensorRT with PyCUDA and CUDA."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from hrm_host.finding import Finding
from hrm_host.machine_files import Files

OLDEST_PYTHON = (3, 10)
OLDEST_TENSORRT = (10, 3)
FROM_JETPACK = "sudo apt-get install nvidia-jetpack python3-libnvinfer, then python3 -m venv --system-site-packages"


@dataclass(frozen=True, kw_only=True)
class Software:
    """What is installed; None where it is not."""

    python: tuple[int, ...]
    onnxruntime: str | None
    providers: tuple[str, ...]
    tensorrt: str | None
    pycuda: str | None


def look() -> Software:
    """This process's own software."""
    has_runtime = importlib.util.find_spec("onnxruntime") is not None
    return Software(
        python=tuple(sys.version_info[:3]),
        onnxruntime=_onnxruntime() if has_runtime else None,
        providers=_providers() if has_runtime else (),
        tensorrt=_version("tensorrt"),
        pycuda=_version("pycuda"),
    )


def findings(files: Files, software: Software, *, on_jetson: bool) -> Iterator[Finding]:
    yield _python(software)
    yield _onnx(software, on_jetson=on_jetson)
    yield from _tensorrt(software, on_jetson=on_jetson)
    if (found := _cuda(files, on_jetson=on_jetson)) is not None:
        yield found


def _python(software: Software) -> Finding:
    text = ".".join(map(str, software.python))
    if software.python < OLDEST_PYTHON:
        return Finding(name="Python", level="fail", text=text, remedy="install Python 3.10 or newer")
    return Finding(name="Python", level="ok", text=text)


def _onnx(software: Software, *, on_jetson: bool) -> Finding:
    if software.onnxruntime is not None:
        said = ", ".join(provider.removesuffix("ExecutionProvider") for provider in software.providers)
        return Finding(name="ONNX Runtime", level="ok", text=f"{software.onnxruntime} with {said}")
    if on_jetson:
        return Finding(name="ONNX Runtime", level="ok", text="missing; TensorRT does its work here")
    return Finding(name="ONNX Runtime", level="fail", text="missing", remedy="pip install 'hrm-edge[serve]'")


def _tensorrt(software: Software, *, on_jetson: bool) -> Iterator[Finding]:
    if software.tensorrt is None:
        level, remedy = ("fail", FROM_JETPACK) if on_jetson else ("ok", "")
        text = "missing" if on_jetson else "not installed; only --engine tensorrt needs it"
        yield Finding(name="TensorRT", level=level, text=text, remedy=remedy)
        return
    major, minor = (int(part) for part in software.tensorrt.split(".")[:2])
    if (major, minor) < OLDEST_TENSORRT:
        remedy = "install TensorRT 10.3 or newer; on a Jetson flash JetPack 6.2"
        yield Finding(name="TensorRT", level="fail", text=software.tensorrt, remedy=remedy)
    else:
        yield Finding(name="TensorRT", level="ok", text=software.tensorrt)
    if software.pycuda is None:
        remedy = "export PATH=/usr/local/cuda/bin:$PATH; pip install 'hrm-edge[jetson]'"
        level = "fail" if on_jetson else "warn"
        yield Finding(name="PyCUDA", level=level, text="missing, and TensorRT engines need it", remedy=remedy)
    else:
        yield Finding(name="PyCUDA", level="ok", text=software.pycuda)


def _cuda(files: Files, *, on_jetson: bool) -> Finding | None:
    """`version.json` of the toolkit names every component; older ones have version.txt."""
    told = files.text("usr/local/cuda/version.json")
    if told is not None:
        try:
            return Finding(name="CUDA", level="ok", text=str(json.loads(told)["cuda"]["version"]))
        except (ValueError, KeyError, TypeError):
            pass
    old = re.search(r"CUDA Version ([\d.]+)", files.text("usr/local/cuda/version.txt") or "")
    if old is not None:
        return Finding(name="CUDA", level="ok", text=old[1])
    if on_jetson:
        return Finding(name="CUDA", level="fail", text="no toolkit in /usr/local/cuda", remedy=FROM_JETPACK)
    return None


def _onnxruntime() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


def _providers() -> tuple[str, ...]:
    import onnxruntime

    return tuple(onnxruntime.get_available_providers())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
