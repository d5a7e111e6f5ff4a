"""The walls between the rooms: who may import whom, and no torch where a Jetson serves.

The first test reads syntax trees, so that an import inside a function counts too; others prove that checks can fail.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "hrm_host": "host",
    "hrm_puzzles": "puzzles",
    "hrm_model": "model",
    "hrm_train": "train",
    "hrm_edge_runtime": "edge_runtime",
    "hrm_calibration": "calibration",
    "hrm_export": "export",
    "hrm_benchmarks": "benchmarks",
    "hrm_benchmarks.desktop": "benchmarks",
}
MAY_IMPORT = {
    "hrm_host": set[str](),
    "hrm_puzzles": {"hrm_host"},
    "hrm_model": {"hrm_host", "hrm_puzzles"},
    "hrm_train": {"hrm_host", "hrm_puzzles", "hrm_model"},
    "hrm_edge_runtime": {"hrm_host", "hrm_puzzles"},
    "hrm_calibration": {"hrm_host", "hrm_puzzles", "hrm_edge_runtime"},
    "hrm_export": {"hrm_host", "hrm_puzzles", "hrm_model", "hrm_edge_runtime", "hrm_calibration"},
    "hrm_benchmarks": {"hrm_host", "hrm_puzzles", "hrm_edge_runtime"},
    "hrm_benchmarks.desktop": {
        "hrm_benchmarks",
        "hrm_host",
        "hrm_puzzles",
        "hrm_edge_runtime",
        "hrm_model",
        "hrm_train",
    },
}
TORCH_ROOMS = {"hrm_model", "hrm_train", "hrm_export", "hrm_benchmarks.desktop"}
TORCH = {"torch", "safetensors", "onnxscript"}


def imports_of(source: str) -> set[str]:
    """Top-level names of every import statement, wherever it stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def files_of(package: str) -> list[Path]:
    """All of a package but what a package inside it has rules of its own for."""
    folders = {name: ROOT / room / name.replace(".", "/") for name, room in FOLDERS.items()}
    inner = [folder for name, folder in folders.items() if name.startswith(f"{package}.")]
    files = sorted(folders[package].rglob("*.py"))
    return [file for file in files if not any(folder in file.parents for folder in inner)]


def forbidden(package: str, source: str) -> set[str]:
    names = imports_of(source)
    rooms = {name for name in names if name in FOLDERS} - MAY_IMPORT[package] - {package}
    return rooms | (set() if package in TORCH_ROOMS else names & TORCH)


@pytest.mark.parametrize("package", FOLDERS)
def test_rooms_import_only_what_lies_below_them(package: str) -> None:
    files = files_of(package)
    assert files
    found = {
        str(file.relative_to(ROOT)): forbidden(package, file.read_text(encoding="utf-8"))
        for file in files
    }
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("package", "source", "names"),
    [
        ("hrm_puzzles", "import hrm_model.hrm", {"hrm_model"}),
        ("hrm_edge_runtime", "def late():\n    import torch", {"torch"}),
        ("hrm_train", "import hrm_export.recipe", {"hrm_export"}),
        ("hrm_edge_runtime", "from hrm_puzzles import registry\nimport numpy", set()),
    ],
)
def test_the_reader_of_imports_can_fail(package: str, source: str, names: set[str]) -> None:
    assert forbidden(package, source) == names


def modules_imported_by(source: str) -> set[str]:
    """Full names of every import statement, of the names taken from a module too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


FLOORS = ("contract", "engines", "batching", "parity", "worker", "api", "http", "solve")
"""The packages of hrm_edge_runtime; each imports only from those before it."""
STAIRS = {
    "engines/trt/build.py": {
        "parity"
    },  # an engine is judged by its golden traces in the process that builds it
}


def floors_named_in(source: str) -> set[str]:
    """The packages of the runtime whose modules a source imports, or names in a string."""
    names = modules_imported_by(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(re.findall(r"\bhrm_edge_runtime(?:\.\w+)+", node.value))
    parts = [name.split(".") for name in names if name.startswith("hrm_edge_runtime.")]
    return {part[1] for part in parts if part[1] in FLOORS}


def climbs(floor: str, source: str) -> set[str]:
    """The floors above its own, or beside it (`http` and `solve`), that a source names."""
    below = set(FLOORS[: FLOORS.index(floor) + 1])
    if floor == "solve":
        below.discard("http")
    return floors_named_in(source) - below


def test_each_floor_of_the_runtime_imports_only_those_below_it() -> None:
    runtime = ROOT / "edge_runtime" / "hrm_edge_runtime"
    found: dict[str, set[str]] = {}
    for floor in FLOORS:
        for file in sorted(runtime.glob(f"{floor}/**/*.py")):
            name = str(file.relative_to(runtime))
            above = climbs(floor, file.read_text(encoding="utf-8")) - STAIRS.get(name, set())
            if above:
                found[name] = above
    assert found == {}


@pytest.mark.parametrize(
    ("floor", "source", "above"),
    [
        ("worker", "import hrm_edge_runtime.http.app", {"http"}),
        ("engines", "def f():\n    from hrm_edge_runtime import batching", {"batching"}),
        ("engines", "BUILD = 'hrm_edge_runtime.parity.walk'", {"parity"}),
        ("solve", "from hrm_edge_runtime.http import body", {"http"}),
        ("http", "from hrm_edge_runtime.api import schema", set()),
    ],
)
def test_the_reader_of_floors_can_fail(floor: str, source: str, above: set[str]) -> None:
    assert climbs(floor, source) == above


SERVE_AND_LIST = """
import asyncio, sys
from pathlib import Path
{first}
from hrm_benchmarks import accuracy, chaos, policies, segments, soak, start, throughput
from hrm_edge_runtime import cli
from hrm_edge_runtime.solve import output, solvers
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.http import app, server
from hrm_edge_runtime.worker import client, loop
Bundle.open(find_bundle())
print(sorted({{name.partition(".")[0] for name in sys.modules}} & {{"torch", "safetensors", "onnx"}}))
"""


def modules_after_loading_the_server(first: str = "") -> str:
    ended = subprocess.run(
        [sys.executable, "-c", SERVE_AND_LIST.format(first=first)],
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.strip()


@pytest.mark.process
def test_the_server_never_loads_torch() -> None:
    assert modules_after_loading_the_server() == "[]"


@pytest.mark.process
def test_the_torch_check_can_fail() -> None:
    assert "torch" in modules_after_loading_the_server(first="import torch")


@pytest.mark.process
def test_the_serving_processes_load_nothing_that_draws_bars() -> None:
    """Imports are most of what `hrm-serve` does before it is ready; rich alone is a twentieth of it."""
    program = "import sys; from hrm_edge_runtime.http import server; from hrm_edge_runtime.worker import lanes, loop; "
    program += 'print(sorted({name.partition(".")[0] for name in sys.modules} & {"rich", "statistics", "matplotlib"}))'
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"
