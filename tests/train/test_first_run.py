"""`hrm-train` alone on a CPU explains and asks before it builds all of ARC."""

import re
from pathlib import Path

import pytest
from cli_tools import invoked
from service_tools import command
from terminal_tools import shown

from hrm_train import session
from hrm_train.cli import main as app
from hrm_train.options import PlanOptions
from hrm_train.session import FOR_A_CPU

STYLED = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")  # every command that rich writes


class ReachedError(Exception):
    """Planning began."""


@pytest.fixture(autouse=True)
def _begins_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reached(*_: object) -> None:
        raise ReachedError

    monkeypatch.setattr(session, "plan_of", reached)
    monkeypatch.chdir(tmp_path)


def test_without_a_terminal_it_names_the_recipes_and_writes_nothing(tmp_path: Path) -> None:
    done = invoked(app, "--hw", "cpu")
    assert done.exit_code == 2
    assert "ARC on a CPU needs --yes; or choose a recipe" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_on_a_terminal_it_names_size_and_recipes_and_asks(tmp_path: Path) -> None:
    screen = shown(command("train", "--hw", "cpu"), columns=80, typed="n\n")
    seen = STYLED.sub("", screen)
    assert "all of ARC (up to 5.9 GiB)" in seen
    for name in FOR_A_CPU:
        assert f"hrm-train --recipe {name}" in seen
    assert "Build and train ARC here? [y/N]" in seen
    assert "nothing is trained: choose a recipe" in seen
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--yes", "--puzzle=arc", "--recipe=arc-1", "--data=mine"])
def test_whoever_names_it_is_not_asked(option: str) -> None:
    done = invoked(app, "--hw=cpu", option)
    assert isinstance(done.exception, ReachedError)


def test_a_recipe_for_a_cpu_is_a_named_recipe_with_its_own_data() -> None:
    for name in FOR_A_CPU:
        assert PlanOptions(recipe=name).examples
