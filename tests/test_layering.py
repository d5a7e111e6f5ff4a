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
ROOMS = {
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
DATA = {"hrm_host", "hrm_puzzles"}
MODEL = {*DATA, "hrm_model"}
RUNTIME = {*DATA, "hrm_edge_runtime"}
MAY_IMPORT = {
    "hrm_host": set[str](),
    "hrm_puzzles": {"hrm_host"},
    "hrm_model": DATA,
    "hrm_train": MODEL,
    "hrm_edge_runtime": DATA,
    "hrm_calibration": RUNTIME,
    "hrm_export": MODEL | RUNTIME | {"hrm_calibration"},
    "hrm_benchmarks": RUNTIME,
    "hrm_benchmarks.desktop": MODEL | RUNTIME | {"hrm_train", "hrm_benchmarks"},
}
TORCH_ROOMS = {"hrm_model", "hrm_train", "hrm_export", "hrm_benchmarks.desktop"}
TORCH = {"torch", "safetensors", "onnxscript"}


def modules_imported_by(source: str) -> set[str]:
    """Full names of every import statement, and of the names taken from a module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def files_of(package: str) -> list[Path]:
    """All of a package without the packages inside it that have their own rules."""
    folders = {name: ROOT / room / name.replace(".", "/") for name, room in ROOMS.items()}
    inner = [folder for name, folder in folders.items() if name.startswith(f"{package}.")]
    files: list[Path] = []
    for file in sorted(folders[package].rglob("*.py")):
        if not any(folder in file.parents for folder in inner):
            files.append(file)
    return files


def forbidden(package: str, source: str) -> set[str]:
    names = {name.partition(".")[0] for name in modules_imported_by(source)}
    rooms = names & ROOMS.keys()
    above = rooms - MAY_IMPORT[package] - {package}
    if package in TORCH_ROOMS:
        return above
    return above | (names & TORCH)


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_only_what_lies_below_them(package: str) -> None:
    files = files_of(package)
    assert files
    for file in files:
        assert forbidden(package, file.read_text(encoding="utf-8")) == set(), file


def test_the_lowest_room_names_no_other_not_even_in_a_string() -> None:
    for file in files_of("hrm_host"):
        named = re.findall(r"\bhrm_[a-z]\w*", file.read_text(encoding="utf-8"))
        # hrm_edge is the prefix of the entry-point groups.
        assert set(named) <= {"hrm_host", "hrm_edge"}, file


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


FLOORS = ("contract", "engines", "batching", "parity", "worker", "api", "http", "solve")
"""The packages of hrm_edge_runtime; each imports only from those before it."""
STAIRS = {"engines/trt/build.py": {"parity"}}
"""An engine is judged by its golden traces in the process that builds it."""


def floors_named_in(source: str) -> set[str]:
    """The packages of the runtime whose modules a source imports, or names in a string."""
    names = modules_imported_by(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(re.findall(r"\bhrm_edge_runtime(?:\.\w+)+", node.value))
    inside = [name for name in names if name.startswith("hrm_edge_runtime.")]
    return {name.split(".")[1] for name in inside} & set(FLOORS)


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


SERVE = """
from hrm_benchmarks import accuracy, chaos, policies, segments, soak, start, throughput
from hrm_edge_runtime import cli
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.http import app, server
from hrm_edge_runtime.solve import output, solvers
from hrm_edge_runtime.worker import client, loop
Bundle.open(find_bundle())
"""
START = """
from hrm_edge_runtime.http import server
from hrm_edge_runtime.worker import lanes, loop
"""


def loaded_by(program: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after a program."""
    listing = f"{program}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-c", listing]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in ended.stdout.split()}


@pytest.mark.process
def test_the_server_never_loads_torch() -> None:
    loaded = loaded_by(SERVE)
    assert {"hrm_edge_runtime", "fastapi"} <= loaded
    assert loaded.isdisjoint({"torch", "safetensors", "onnx"})


@pytest.mark.process
def test_the_serving_processes_load_nothing_that_draws_bars() -> None:
    """Imports are most of the time before `hrm-serve` is ready; rich alone is a twentieth of it."""
    loaded = loaded_by(START)
    assert "hrm_edge_runtime" in loaded
    assert loaded.isdisjoint({"rich", "statistics", "matplotlib"})
