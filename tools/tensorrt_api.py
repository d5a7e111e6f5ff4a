"""Prints the names of a TensorRT version's Python API, one class per line, without a GPU.

    python tools/tensorrt_api.py UNPACKED_WHEEL > tests/support/tensorrt_api/10.3.0.txt

UNPACKED_WHEEL is a directory with the unpacked PyPI wheel `tensorrt-cu12-bindings` of that version.
It has only the bindings. Empty stubs supply the C functions of the libraries behind them, which is
enough for an import. Needs a C compiler. Layers and plugins are left out, because the step graph
reaches TensorRT through its ONNX parser.
"""

import ctypes
import enum
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FUNCTIONS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)
LIBRARIES = ("libnvinfer.so", "libnvonnxparser.so", "libnvinfer_plugin.so")
LEFT_OUT = re.compile(r"_|I\w*Layer$|I?Plugin|I\w*Plugin")
ENUM_EXTRAS = {"name", "value"}


def load_stubs(folder: Path, major: str) -> None:
    """Load empty libraries under the names that the bindings look for."""
    source = folder / "stub.c"
    stubs = [f"void *{name}(void) {{ return 0; }}\n" for name in FUNCTIONS]
    source.write_text("".join(stubs))
    for library in LIBRARIES:
        file = folder / f"{library}.{major}"
        named = f"-Wl,-soname,{file.name}"
        subprocess.run(["cc", "-shared", "-fPIC", named, source, "-o", file], check=True)
        ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)


def members(kind: type) -> list[str]:
    public = {name for name in dir(kind) if not name.startswith("_")}
    return sorted(public - ENUM_EXTRAS)


def lines_of(owner: object, prefix: str = "") -> list[str]:
    """Return a line for each class of a module or a class, and for the classes inside it."""
    lines: list[str] = []
    for name, kind in sorted(vars(owner).items()):
        if not isinstance(kind, type) or issubclass(kind, enum.Enum) or LEFT_OUT.match(name):
            continue
        line = f"{prefix}{name}: {' '.join(members(kind))}"
        lines.append(line.rstrip())
        if kind.__module__.startswith("tensorrt"):
            lines += lines_of(kind, f"{prefix}{name}.")
    return lines


def main(wheel: Path) -> None:
    info = next(wheel.glob("*.dist-info"))
    version = info.name.removesuffix(".dist-info").split("-")[1]
    with tempfile.TemporaryDirectory() as folder:
        load_stubs(Path(folder), version.partition(".")[0])
        sys.path.insert(0, str(wheel))
        import tensorrt_bindings

    module = tensorrt_bindings.tensorrt
    functions: list[str] = []
    for name, value in sorted(vars(module).items()):
        if not isinstance(value, type) and not name.startswith("_"):
            functions.append(name)
    print(f"# tensorrt {version}")
    print(f": {' '.join(functions)}")
    print(*lines_of(module), sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
