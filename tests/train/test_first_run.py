"""`hrm-train` alone on a CPU names the recipes for a CPU instead of building all of ARC."""

from pathlib import Path

import pytest
from cli_tools import invoked, rejected

from hrm_train import session
from hrm_train.cli import main as app
from hrm_train.options import PlanOptions


class ReachedError(Exception):
    """Planning began."""


@pytest.fixture(autouse=True)
def _begins_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reached(*_: object) -> None:
        raise ReachedError

    monkeypatch.setattr(session, "plan_of", reached)
    monkeypatch.chdir(tmp_path)


def test_alone_on_a_cpu_it_names_size_and_recipes_and_writes_nothing(tmp_path: Path):
    sentence = rejected(app, "--hw", "cpu")
    assert "all of ARC (up to 5.9 GiB)" in sentence
    for name in session.FOR_A_CPU:
        assert name in sentence
        assert PlanOptions(recipe=name).examples  # a recipe with its own data
    assert "or --yes" in sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--yes", "--puzzle=arc", "arc-1", "--data=mine"])
def test_whoever_names_it_is_not_stopped(option: str):
    done = invoked(app, "--hw=cpu", option)
    assert isinstance(done.exception, ReachedError)
