"""The stand-in is the table of uses: it has only what the program uses of TensorRT's module.

`make check-trt` shows that NVIDIA has it all, with these parameters: there the tests of the engine
and its builder run through NVIDIA's bindings.
"""

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
from stand_ins import FAKES, forget_stand_ins

from hrm_edge_runtime.engines import trt as package


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The members of the stand-in's classes, as `IBuilderConfig.clear_flag`."""
    monkeypatch.syspath_prepend(str(FAKES))
    forget_stand_ins()
    return members_of(importlib.import_module("stand_in_tensorrt"))


def members_of(owner: object, prefix: str = "") -> dict[str, Any]:
    members = {}
    for name, member in vars(owner).items():
        is_kind = inspect.isclass(member) and member.__module__ == "stand_in_tensorrt"
        if is_kind:
            members |= members_of(member, f"{prefix}{name}.")
        if name[0] != "_" and (prefix or is_kind):
            members[prefix + name] = member
    return members


def names_in_the_program() -> set[str]:
    """Attributes and functions of the modules that import TensorRT."""
    names = set()
    for file in Path(package.__path__[0]).glob("*.py"):
        tree = ast.parse(file.read_text())
        nodes = list(ast.walk(tree))
        imports = {ast.unparse(node) for node in nodes if isinstance(node, ast.Import)}
        if "import tensorrt" in imports:
            names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return names


def test_the_stand_in_has_nothing_that_the_program_does_not_use(stand_in: dict[str, Any]):
    members = {name.split(".")[-1] for name in stand_in if "." in name}
    assert members <= names_in_the_program()
