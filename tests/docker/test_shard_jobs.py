"""The example jobs for clusters: their own scripts build the shards of one data set."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hrm_puzzles.data.datasets import fingerprint

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parents[2] / "docker"
RECIPE = "sudoku-4x4 --train 200 --test 70"
PROGRAM = '#!/bin/sh\nexec {python} -c "from hrm_puzzles.cli import main; main()" "$@"\n'


@pytest.fixture
def with_hrm_data(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has `hrm-data`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "hrm-data"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def sh(arguments: list[str], environment: Mapping[str, str], **more: str) -> None:
    subprocess.run(["sh", *arguments], env={**environment, **more}, check=True, timeout=120)


def built_by_one_machine(folder: Path, environment: Mapping[str, str]) -> str:
    sh(["-c", f"hrm-data build {RECIPE} --out {folder}/whole"], environment)
    return fingerprint(folder / "whole")


def test_a_slurm_array_builds_the_data_set(tmp_path: Path, with_hrm_data: dict[str, str]) -> None:
    out = str(tmp_path / "data")
    script = [str(FOLDER / "slurm" / "build-data.sh"), "3", out, *RECIPE.split()]
    for number in ("1", "2", "3", "2"):  # the second one is submitted twice
        sh(script, with_hrm_data, SLURM_ARRAY_TASK_ID=number)
    sh(["-c", f"hrm-data merge {out}.shards/* --out {out}"], with_hrm_data)
    assert fingerprint(tmp_path / "data") == built_by_one_machine(tmp_path, with_hrm_data)


def container_of(name: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    job = list(yaml.safe_load_all((FOLDER / "kubernetes" / name).read_text()))[-1]
    container = job["spec"]["template"]["spec"]["containers"][0]
    if "completions" in job["spec"]:
        assert container["env"] == [{"name": "SHARDS", "value": str(job["spec"]["completions"])}]
    return container


def test_an_indexed_job_builds_the_data_set(tmp_path: Path, with_hrm_data: dict[str, str]) -> None:
    (build,) = container_of("build-data.yaml")["args"]
    (merge,) = container_of("merge-data.yaml")["args"]
    build = build.replace("/data", f"{tmp_path}/data")
    small = build.replace("sudoku --train 1000000 --test 10000", RECIPE)
    assert small != build
    for index in ("0", "1", "0"):  # the first pod is started again
        sh(["-c", small], with_hrm_data, JOB_COMPLETION_INDEX=index, SHARDS="2")
    sh(["-c", merge.replace("/data", f"{tmp_path}/data")], with_hrm_data)
    merged = fingerprint(tmp_path / "data" / "sudoku")
    assert merged == built_by_one_machine(tmp_path, with_hrm_data)
