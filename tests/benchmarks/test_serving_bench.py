"""The accounting of `hrm-bench serve` in virtual time: what each policy computes, to the row."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench_tools import figures_of
from tiny_bundle import write_tiny_bundle

from hrm_benchmarks import policies
from hrm_benchmarks.desktop import training
from hrm_benchmarks.report import Rounds
from hrm_benchmarks.scripted import Scripted, VirtualClock, made_up, segment_shares
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_puzzles import registry
from hrm_puzzles.data.sources import questions_made

SEGMENTS = np.array([1, 4, 2, 1, 3])  # of the puzzles in order; two slots, one second per step
NAMES = [policy.name for policy in policies.POLICIES]


def tiny_bench() -> policies.Bench:
    puzzle = registry.get("sudoku-4x4")
    clock = VirtualClock()
    questions = made_up(puzzle, len(SEGMENTS), np.random.default_rng(0))
    script = Scripted(puzzle=puzzle.name, slots=2, step_ms=1000, cost="flat")
    return policies.Bench(
        engine=script.engine(questions, SEGMENTS, sleep=clock.sleep),
        puzzle=puzzle,
        puzzle_vector_E=np.zeros(1, np.float32),
        questions=questions,
        rule=HaltingPolicy(kind="learned", max_segments=16),
        clock=clock,
        title="tiny",
    )


def test_each_policy_takes_the_steps_of_its_rule() -> None:
    runs = policies.measure(tiny_bench(), rounds=1)
    steps = {name: run["steps"] for name, run in runs.items()}
    assert steps == {
        "refill": 7,  # puzzles in the slots: 01 21 21 31 4 4 4
        "fixed": 48,  # three batches of 16
        "slowest": 9,  # batches of two: 4 + 2 + 3
        "compaction": 9,
        "one-at-a-time": 11,  # 1 + 4 + 2 + 1 + 3
    }
    assert runs["refill"]["share_of_bound"] == 1.0
    assert runs["slowest"]["refill_ratio"] == pytest.approx(9 / 7)
    assert runs["slowest"]["mean_segments"] == pytest.approx(SEGMENTS.mean())


def test_a_recorded_run_can_be_played_again(tmp_path: Path) -> None:
    command = "serve --virtual-time --puzzles 60 --step-ms 1"
    figures = figures_of(f"{command} --segments bim3")
    recorded = tmp_path / "recorded.json"
    recorded.write_text(json.dumps(figures))
    refill = figures["runs"]["refill"]
    _, *counts = refill["segments_histogram"]
    share_S = segment_shares(str(recorded))
    assert share_S == pytest.approx(np.array(counts) / 60)
    again = figures_of(f"{command} --segments {recorded}")
    assert again["settings"]["segments"] == str(recorded)


@pytest.mark.parametrize("content", ["{}", "[0, -1]", "no json"])
def test_a_file_without_a_histogram_is_rejected(tmp_path: Path, content: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"bad\.json"):
        segment_shares(str(file))


def test_every_policy_with_early_exit_gives_each_puzzle_the_same_answer(tmp_path: Path) -> None:
    bundle = Bundle.open(write_tiny_bundle(tmp_path / "tiny.bundle"))
    easiest = bundle.puzzle.difficulties[0]
    questions = questions_made(bundle.puzzle, 9, difficulty=easiest, seed=0)
    served = policies.bundle_bench(
        bundle, questions, precision="fp32", kind=None, num_slots=4, num_threads=1, cpu_clock=False
    )
    served = replace(served, rule=HaltingPolicy(kind="learned", max_segments=9))
    answers: dict[str, dict[int, tuple[int, bytes]]] = {}
    for policy in policies.POLICIES:
        results, _ = policies.serve(policy, served)
        answer_of: dict[int, tuple[int, bytes]] = {}
        for result in results:
            answer = np.asarray(result.answer_T).tobytes()
            answer_of[result.attempt_id] = (result.segments, answer)
        answers[policy.name] = answer_of
    fixed = answers.pop("fixed")
    assert {segments for segments, _ in fixed.values()} == {9}
    assert all(answer_of == answers["refill"] for answer_of in answers.values())


def test_the_command_measures_a_bundle_on_puzzles_from_a_file(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "tiny.bundle")
    csv = tmp_path / "puzzles.csv"
    csv.write_text("source,question,answer,rating\nours,1.3.341.2143432.,1234341221434321,0\n")
    figures = figures_of(f"serve --bundle {bundle} --csv {csv} --slots 2 --cpu-clock")
    runs = figures["runs"]
    refill = runs["refill"]
    fixed = runs["fixed"]
    assert set(runs) == set(NAMES)
    assert refill["mean_segments"] == 6
    assert refill["exact"] == 0
    assert fixed["exact"] == 0


TINY = {"hidden_size": 32, "num_heads": 2, "puzzle_vector_size": 32}
PUBLISHED_CYCLES = {
    "positions": "rope",
    "high_cycles": 2,
    "low_cycles": 2,
    "high_layers": 2,
    "low_layers": 2,
}
NO_PREFIX = {"puzzle_vector_size": 0}


def tiny(folder: Path, **changes: Any) -> list[training.TrainerUnderTest]:
    """Return the three contestants on 4x4 Sudoku, with two heads of width 16."""
    contestants = training.contestants(
        "small", "sudoku-4x4", folder / "data", batch_size=4, num_threads=1
    )
    sizes = {**TINY, **changes}
    return [replace(one, config=replace(one.config, **sizes)) for one in contestants]


@pytest.mark.parametrize(
    "changes", [{}, PUBLISHED_CYCLES, NO_PREFIX], ids=["small", "published cycles", "no prefix"]
)
def test_equal_contestants_have_equal_losses(changes: dict[str, Any], tmp_path: Path) -> None:
    plain, same, _ = tiny(tmp_path, **changes)
    plain_step = training.stepper(plain)
    same_step = training.stepper(same)
    plain_losses = [plain_step() for _ in range(12)]
    same_losses = [same_step() for _ in range(12)]
    assert same_losses == pytest.approx(plain_losses, abs=training.LOSS_TOLERANCE)
    assert len(set(plain_losses)) == 12


@pytest.mark.process
def test_unequal_work_under_the_name_of_equal_work_is_rejected(tmp_path: Path) -> None:
    plain, same, _ = tiny(tmp_path)
    other = replace(same, recipe=replace(same.recipe, loss="softmax"))
    one_round = Rounds(number=1, turn_s=0.0, cpu_clock=False)
    with pytest.raises(ValueError, match="the work is not equal"):
        training.measure([plain, other], one_round)


def test_a_ratio_is_taken_inside_its_round_and_counts_samples_not_steps(tmp_path: Path) -> None:
    plain, same, own = tiny(tmp_path)
    assert own.samples_per_step == 4 * plain.samples_per_step
    seconds_RC = np.array([[0.5, 0.25, 1.0], [1.0, 0.25, 0.5]])
    first, second, third = training.speeds([plain, same, own], seconds_RC)
    assert first["ratio"] == 1.0
    assert second["ratio"] == (2.0 + 4.0) / 2
    assert third["ratio"] == (2.0 + 8.0) / 2
    assert second["equal_work"]
    assert not third["equal_work"]


@pytest.mark.process
def test_the_command_measures_a_ratio() -> None:
    sizes = "--puzzle sudoku-4x4 --batch 2 --threads 1"
    figures = figures_of(f"train {sizes} --rounds 1 --turn-s 0")
    assert len(figures["runs"]) == 3
    for run in figures["runs"]:
        assert run["ratio"] > 0
    assert figures["environment"]["torch"] == torch.__version__
