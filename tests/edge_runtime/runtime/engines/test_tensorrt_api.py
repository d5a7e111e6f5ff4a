"""What the program uses of TensorRT's Python module is in NVIDIA's own, of every version.

The stand-in is the table of uses: it has the classes, members and parameters that the program uses.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from stand_ins import FAKES, NVIDIA, forget_stand_ins

from hrm_edge_runtime.engines import trt as package

SIGNATURE = re.compile(r"^\s*(?:\d+\. )?\w+\((self[^)]*)\)", re.MULTILINE)
NOT_TENSORRTS = {
    "DEBUG",
    "allocate",
    "append",
    "dtype",
    "enqueue",
    "itemsize",
    "pop",
    "read",
    "remove",
}
"""Names of other objects, which a class of NVIDIA's happens to have too."""

needs_bindings = pytest.mark.skipif(not NVIDIA, reason="`make check-trt` downloads the bindings")


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


def last_names(members: dict[str, Any]) -> set[str]:
    return {name.split(".")[-1] for name in members}


def test_the_stand_in_has_nothing_that_the_program_does_not_use(stand_in: dict[str, Any]):
    members = {name: member for name, member in stand_in.items() if "." in name}
    assert last_names(members) <= names_in_the_program()


@needs_bindings
def test_the_stand_in_has_everything_of_nvidias_that_the_program_uses(
    stand_in: dict[str, Any],
):
    nvidia = importlib.import_module("tensorrt").tensorrt
    theirs = set()
    for kind in filter(inspect.isclass, vars(nvidia).values()):
        theirs |= {kind.__name__, *dir(kind)}
    used = {name for name in theirs & names_in_the_program() if name[0] != "_"}
    assert used - last_names(stand_in) <= NOT_TENSORRTS


@needs_bindings
def test_nvidias_has_everything_with_the_same_parameters(stand_in: dict[str, Any]):
    nvidia = importlib.import_module("tensorrt")
    for name, member in stand_in.items():
        found = nvidia
        for part in name.split("."):
            found = getattr(found, part)
        if inspect.isfunction(member):
            _self, *parameters = inspect.signature(member).parameters
            forms = SIGNATURE.findall(found.__doc__)
            assert any(fits(form, parameters) for form in forms), (name, forms)
        elif name.startswith("IBuilderConfig."):
            assert found.fset is not None, name


def fits(signature: str, passed: list[str]) -> bool:
    """Whether a function takes these parameters; further ones need a default."""
    parameters = re.split(r", (?=\w+:)", signature)[1:]
    names = [parameter.partition(":")[0] for parameter in parameters]
    further = parameters[len(passed) :]
    has_defaults = all(" = " in parameter for parameter in further)
    return names[: len(passed)] == passed and has_defaults
