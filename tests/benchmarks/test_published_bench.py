"""The published step beside our engine does equal work, and its loop proves what ours proves."""

import pytest
from bench_tools import figures_of, refusal_of

from hrm_benchmarks.desktop import published


@pytest.mark.process
def test_published_steps_and_loops_run_beside_ours() -> None:
    models = "--model hrm-6x6 --model trm-6x6 --puzzles 8"
    figures = figures_of(f"published {models} --rounds 1 --turn-s 0")
    runs = figures["runs"]
    steps = [run for run in runs if run["num_proven"] is None]
    assert [run["name"] for run in steps] == 2 * [published.OURS, published.EAGER]
    for run in steps:
        assert run["cpu_ms"] >= 0
        assert run["apart"] < published.LOGIT_TOLERANCE
    loops = runs[len(steps) :]
    assert [run["name"] for run in loops] == list(published.LOOPS)
    assert {run["num_proven"] for run in loops} == {8}


def test_the_large_model_has_27_million_parameters() -> None:
    config = published.config_of("hrm-27m")
    num_parameters = published.compare.num_parameters(config)
    assert num_parameters == pytest.approx(27e6, rel=0.02)


def test_an_unknown_model_is_rejected_in_one_sentence() -> None:
    assert "'hrm-3x3' is not a model" in refusal_of("published --model hrm-3x3")
