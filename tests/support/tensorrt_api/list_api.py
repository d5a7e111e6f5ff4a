"""Writes the names of a TensorRT version's Python API, one class a line, without a GPU and without TensorRT.

    python list_api.py UNPACKED_WHEEL > 10.3.0.txt

UNPACKED_WHEEL is a directory into which the PyPI wheel `tensorrt-cu12-bindings` of that version was unpacked. The wheel
holds the bindings alone; nine C functions of the libraries behind them are supplied by empty stubs, which is enough for
an import. Needs a C compiler. Layers and plugins are left out: the step graph reaches TensorRT through its ONNX parser.
"""

import ctypes
import enum
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CREATED = ("InferBuilder", "InferRefitter", "InferRuntime", "NvOnnxParserRefitter", "NvOnnxParser")
ASKED = (
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)
FUNCTIONS = (*(f"create{name}_INTERNAL" for name in CREATED), *ASKED)
LIBRARIES = ("libnvinfer.so", "libnvonnxparser.so", "libnvinfer_plugin.so")
LEFT_OUT = re.compile(r"_|I\w*Layer$|I?Plugin|I\w*Plugin")
ENUM_EXTRAS = {"name", "value"}


def load_stubs(folder: Path, major: str) -> None:
    """Empty libraries under the names that the bindings ask for."""
    source = folder / "stub.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in FUNCTIONS))
    for library in LIBRARIES:
        file = folder / f"{library}.{major}"
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-Wl,-soname,{file.name}", source, "-o", file], check=True
        )
        ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)


def members(kind: type) -> list[str]:
    return sorted(
        name for name in dir(kind) if not name.startswith("_") and name not in ENUM_EXTRAS
    )


def lines_of(module: object, prefix: str = "") -> list[str]:
    lines: list[str] = []
    for name in sorted(vars(module)):
        kind = vars(module)[name]
        if isinstance(kind, type) and not issubclass(kind, enum.Enum) and not LEFT_OUT.match(name):
            lines.append(f"{prefix}{name}: {' '.join(members(kind))}".rstrip())
            lines += [
                line
                for line in lines_of(kind, f"{prefix}{name}.")
                if kind.__module__.startswith("tensorrt")
            ]
    return lines


def main(wheel: Path) -> None:
    version = next(wheel.glob("*.dist-info")).name.removesuffix(".dist-info").split("-")[1]
    with tempfile.TemporaryDirectory() as folder:
        load_stubs(Path(folder), version.partition(".")[0])
        sys.path.insert(0, str(wheel))
        import tensorrt_bindings

        names = vars(tensorrt_bindings.tensorrt).items()
        functions = sorted(
            name
            for name, value in names
            if not isinstance(value, type) and not name.startswith("_")
        )
        lines = [
            f"# tensorrt {version}",
            f": {' '.join(functions)}",
            *lines_of(tensorrt_bindings.tensorrt),
        ]
        print("\n".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
