"""Every exception of every package crosses processes: pools pickle what a worker raises."""

import importlib
import inspect
import pickle
import pkgutil
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from files import text_of
from odd_server import REFUSAL

import hrm_edge
from hrm_edge_runtime.api.schema import ErrorDetail

PYPROJECT = text_of("pyproject.toml")
PACKAGES = sorted(set(re.findall(r'"\w+/(hrm_\w+)",', PYPROJECT)))
SAMPLES = {
    str: "text",
    int: 503,
    float: 1.5,
    bytes: b"text",
    ErrorDetail: REFUSAL,
}


def subclasses_of(kind: type[Exception]) -> Iterator[type[Exception]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses_of(one)


def exceptions() -> list[type[Exception]]:
    """Every exception class that a module of this project defines."""
    for package in PACKAGES:
        folders = importlib.import_module(package).__path__
        for found in pkgutil.walk_packages(folders, f"{package}."):
            importlib.import_module(found.name)
    return [one for one in subclasses_of(Exception) if one.__module__.startswith("hrm_")]


def sample_of(kind: Any) -> object:
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    return SAMPLES[kind]


def instance_of(kind: type[Exception]) -> Exception:
    """An exception with a value for each parameter that has no default."""
    if not inspect.isfunction(kind.__init__):  # that of a built-in exception
        return kind("what; remedy.")
    hints = get_type_hints(kind.__init__)
    arguments = []
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is parameter.empty:
            arguments.append(sample_of(hints[name]))
    return kind(*arguments)


@pytest.mark.process
def test_every_exception_is_the_same_after_pickling():
    kinds = exceptions()
    assert hrm_edge.RefusedError in kinds
    for kind in kinds:
        error = instance_of(kind)
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert str(copy) == str(error)
        assert vars(copy) == vars(error)
