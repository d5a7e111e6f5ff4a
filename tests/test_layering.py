"""The walls between the rooms: who may import whom, and no torch on the board that serves."""

import ast
import re
import sys
from pathlib import Path

import pytest
from cli_tools import ran
from files import ROOT

FOLDERS = {
    "hrm_host": "host",
    "hrm_puzzles": "puzzles",
    "hrm_model": "model",
    "hrm_train": "train",
    "hrm_edge_runtime": "edge_runtime",
    "hrm_parity": "edge_runtime",
    "hrm_edge_server": "edge_runtime",
    "hrm_edge": "edge_runtime",
    "hrm_calibration": "calibration",
    "hrm_export": "export",
    "hrm_benchmarks": "benchmarks",
    "hrm_benchmarks.desktop": "benchmarks",
}
SERVING = {"hrm_host", "hrm_puzzles", "hrm_edge_runtime", "hrm_parity"}
MAY_IMPORT = {
    "hrm_host": set[str](),
    "hrm_puzzles": {"hrm_host"},
    "hrm_model": {"hrm_host", "hrm_puzzles"},
    "hrm_train": {"hrm_host", "hrm_puzzles", "hrm_model"},
    "hrm_edge_runtime": {"hrm_host", "hrm_puzzles"},
    "hrm_parity": {"hrm_host", "hrm_puzzles", "hrm_edge_runtime"},
    "hrm_edge_server": SERVING,
    "hrm_edge": SERVING,
    "hrm_calibration": SERVING,
    "hrm_export": {*SERVING, "hrm_model", "hrm_calibration"},
    "hrm_benchmarks": {*SERVING, "hrm_edge_server", "hrm_edge"},
    "hrm_benchmarks.desktop": {
        "hrm_benchmarks",
        "hrm_host",
        "hrm_puzzles",
        "hrm_edge_runtime",
        "hrm_parity",
        "hrm_model",
        "hrm_train",
        "hrm_export",
    },
}
TORCH_ROOMS = {"hrm_model", "hrm_train", "hrm_export", "hrm_benchmarks.desktop"}
TORCH = {"torch", "safetensors", "onnxscript"}


def modules_imported_by(source: str) -> set[str]:
    """Return full names of every import statement, and of the names taken from a module."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def folder_of(package: str) -> Path:
    return ROOT / FOLDERS[package] / package.replace(".", "/")


def files_of(package: str) -> list[Path]:
    inner = [folder_of(name) for name in FOLDERS if name.startswith(f"{package}.")]
    files = []
    for file in sorted(folder_of(package).rglob("*.py")):
        if not any(folder in file.parents for folder in inner):
            files.append(file)
    return files


@pytest.mark.parametrize("package", FOLDERS)
def test_rooms_import_only_what_is_below_them(package: str):
    files = files_of(package)
    assert files
    found = {}
    for file in files:
        modules = modules_imported_by(file.read_text(encoding="utf-8"))
        names = {name.partition(".")[0] for name in modules}
        bad = names & set(FOLDERS) - MAY_IMPORT[package] - {package}
        if package not in TORCH_ROOMS:
            bad |= names & TORCH
        if bad:
            found[str(file.relative_to(ROOT))] = bad
    assert found == {}


def test_the_lowest_room_names_no_other_not_even_in_a_string():
    for file in files_of("hrm_host"):
        named = re.findall(r"\bhrm_[a-z]\w*", file.read_text(encoding="utf-8"))
        # hrm_edge is the prefix of the entry-point groups.
        assert set(named) <= {"hrm_host", "hrm_edge"}, file


LAYERS = ("contract", "engines", "batching", "worker", "api")
"""The folders of hrm_edge_runtime; each imports only from those before it."""


def modules_named_in(source: str) -> set[str]:
    """Return the modules that a source imports, or names in a string that is nothing else."""
    names = modules_imported_by(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(re.findall(r"^hrm_\w+(?:\.\w+)+$", node.value))
    return names


def test_each_layer_of_the_runtime_names_only_those_below_it():
    runtime = ROOT / "edge_runtime" / "hrm_edge_runtime"
    found = {}
    for layer in LAYERS:
        below = LAYERS[: LAYERS.index(layer) + 1]
        for file in sorted(runtime.glob(f"{layer}/**/*.py")):
            name = str(file.relative_to(runtime))
            above = set()
            for module in modules_named_in(file.read_text(encoding="utf-8")):
                package, *parts = module.split(".")
                if package == "hrm_edge_runtime" and parts[0] in LAYERS and parts[0] not in below:
                    above.add(parts[0])
                if package in ("hrm_parity", "hrm_edge_server", "hrm_edge"):
                    above.add(package)
            if above:
                found[name] = above
    assert found == {}


SERVE = """
import sys
from hrm_edge_server import server
from hrm_edge_runtime.worker import lanes, loop
"""
SERVE_SOLVE_AND_MEASURE = (
    SERVE
    + """
from hrm_benchmarks import accuracy, load, policies, segments
from hrm_edge_server import cli
from hrm_edge import output, solvers
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
Bundle.open(find_bundle())
"""
)
SERVE_SOLVE_AND_BUILD = (
    SERVE
    + """
from hrm_edge_server import cli
from hrm_parity import acceptance, trt_build
from hrm_parity import cli as comparison
from hrm_edge import output, solvers
from hrm_edge_runtime.engines import factory
"""
)
ENGINES = {"onnxruntime", "tensorrt", "pycuda", "cuda", "matplotlib"}
LIST = 'print(*sorted({name.partition(".")[0] for name in sys.modules}))'


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        (SERVE_SOLVE_AND_MEASURE, {"torch", "safetensors", "onnx"}),
        (SERVE, {"rich", "statistics", "matplotlib"}),  # imports are most of a server's start
        (SERVE_SOLVE_AND_BUILD, ENGINES),
    ],
    ids=["no torch", "nothing that draws", "no engine before one is chosen"],
)
def test_the_server_loads_nothing_that_a_board_lacks(program: str, unwanted: set[str]):
    loaded = set(ran(sys.executable, "-c", program + LIST).stdout.split())
    assert "hrm_edge_runtime" in loaded
    assert loaded & unwanted == set()
