"""The benchmark's accounting, in virtual time: what each policy computes is known before it runs, to the last row."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_bundle import write_tiny_bundle
from typer.testing import CliRunner

from hrm_benchmarks import policies
from hrm_benchmarks.cli import app
from hrm_benchmarks.report import Row
from hrm_benchmarks.scripted import Cost, Scripted, VirtualClock, made_up, segment_shares
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_puzzles import registry
from hrm_puzzles.puzzle import RIGHT

SEGMENTS = np.array([1, 4, 2, 1, 3])  # of the puzzles in their order; two slots, a second a step


def bench_of(cost: Cost = "flat") -> policies.Bench:
    puzzle, clock = registry.get("sudoku-4x4"), VirtualClock()
    asked = made_up(puzzle, len(SEGMENTS), np.random.default_rng(0))
    return policies.Bench(
        engine=Scripted(puzzle=puzzle.name, slots=2, step_ms=1000, cost=cost).engine(
            asked, SEGMENTS, sleep=clock.sleep
        ),
        puzzle=puzzle,
        puzzle_vector_E=np.zeros(1, np.float32),
        questions=asked,
        rule=HaltingPolicy(kind="learned", max_segments=16),
        clock=clock,
        title="tiny",
    )


def figures(cost: Cost = "flat") -> dict[str, Row]:
    return policies.measure(bench_of(cost), rounds=1)


def test_each_policy_takes_the_steps_its_rule_says() -> None:
    # refill: puzzles 01 21 21 31 4 4 4; batches of two: 4 + 2 + 3 steps; fixed: three of 16; alone: 1 + 4 + 2 + 1 + 3
    steps = {name: run["steps"] for name, run in figures().items()}
    assert steps == {"refill": 7, "fixed": 48, "slowest": 9, "compaction": 9, "one-at-a-time": 11}


def test_time_follows_the_rows_that_were_really_computed() -> None:
    # waiting computes both rows of a batch until its end (4*2 + 2*2 + 3*1); compaction drops those that have halted
    seconds = {name: 5 / run["puzzles_per_s"] for name, run in figures("linear").items()}
    assert seconds == {"refill": 11, "fixed": 16 * 5, "slowest": 15, "compaction": 11, "one-at-a-time": 11}


def test_rows_in_use_are_counted_against_the_slots_that_were_offered() -> None:
    seen = figures()
    assert seen["refill"]["occupancy_whole_run"] == 11 / 14
    assert seen["slowest"]["occupancy_whole_run"] == 11 / 18
    assert seen["one-at-a-time"]["occupancy_whole_run"] == 1.0


def test_the_backlog_ends_when_nobody_waits_any_more() -> None:
    # refill: the last puzzle takes its slot before the fifth step, and until then both slots work; batches of two:
    # the first takes 4 steps with 5 live rows, the second 2 with 3, and the third leaves nobody waiting
    seen = figures()
    assert seen["refill"]["occupancy"] == 1.0
    assert seen["slowest"]["occupancy"] == 8 / 12


def test_every_policy_answers_every_puzzle_alike() -> None:
    bench = bench_of()
    for policy in policies.POLICIES:
        results, row = policies.serve(policy, bench)
        assert sorted(result.attempt_id for result in results) == [0, 1, 2, 3, 4], policy.name
        assert row["exact"] == 1.0, policy.name
        assert [result.segments for result in results] == [16] * 5 or policy.early_exit


def test_figures_compare_with_the_refill_run() -> None:
    seen = figures()
    assert seen["slowest"]["refill_ratio"] == pytest.approx(9 / 7)
    assert seen["slowest"]["puzzles_per_s"] == pytest.approx(5 / 9)
    assert seen["slowest"]["mean_segments"] == pytest.approx(SEGMENTS.mean())
    assert (seen["refill"]["refill_ratio"], seen["refill"]["share_of_bound"]) == (1.0, 1.0)


def test_made_up_questions_are_solved_by_their_labels() -> None:
    puzzle = registry.get("sudoku")
    asked = made_up(puzzle, 50, np.random.default_rng(1))
    assert (puzzle.check_BT(asked.tokens_NT, asked.labels_NT) == RIGHT).all()
    assert len({tokens_T.tobytes() for tokens_T in asked.tokens_NT}) == 50


@pytest.mark.parametrize(
    ("name", "mean"), [("geo3", 3), ("geo5", 5), ("geo8", 8), ("bim3", 3), ("bim5", 5), ("bim8", 8)]
)
def test_synthetic_shapes_have_the_mean_in_their_name(name: str, mean: int) -> None:
    share_S = segment_shares(name)
    assert share_S.sum() == pytest.approx(1)
    assert np.arange(1, 17) @ share_S == pytest.approx(mean)


@pytest.mark.parametrize(("segments", "fixed", "slowest"), [("geo5", 3.19, 2.26), ("bim5", 3.19, 2.71)])
def test_throughput_agrees_with_the_closed_form(segments: str, fixed: float, slowest: float) -> None:
    """E[T] and E[max of 8] give the ratios; a finite sample and its drain stay within a tenth of them."""
    scripted = Scripted(segments=segments, puzzles=600, slots=8, step_ms=1, cost="flat", seed=1)
    seen = policies.measure(policies.scripted_bench(scripted, virtual=True), rounds=1)
    assert seen["fixed"]["refill_ratio"] == pytest.approx(fixed, rel=0.1)
    assert seen["slowest"]["refill_ratio"] == pytest.approx(slowest, rel=0.1)
    assert seen["refill"]["occupancy"] >= 0.98


def test_what_a_run_recorded_can_be_played_again(tmp_path: Path) -> None:
    arguments = ["serve", "--virtual-time", "--puzzles", "60", "--step-ms", "1", "--json"]
    first = CliRunner().invoke(app, [*arguments, "--segments", "bim3"])
    recorded = tmp_path / "recorded.json"
    recorded.write_text(first.stdout)
    histogram = json.loads(first.stdout)["runs"]["refill"]["segments_histogram"]
    share_S = segment_shares(str(recorded))
    assert share_S == pytest.approx(np.array(histogram[1:]) / 60)
    assert CliRunner().invoke(app, [*arguments, "--segments", str(recorded)]).exit_code == 0


@pytest.mark.parametrize("content", ["{}", "[0]", "[0, -1]", "no json", '{"runs": 3}', "[[1, 2]]"])
def test_a_file_without_a_histogram_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(ValueError, match=r"bad\.json"):
        segment_shares(str(tmp_path / "bad.json"))


def test_the_table_names_every_policy() -> None:
    shown = CliRunner().invoke(app, ["serve", "--virtual-time", "--puzzles", "20"], env={"COLUMNS": "150"})
    assert shown.exit_code == 0
    assert all(policy.name in shown.stdout for policy in policies.POLICIES)


def test_a_mistake_ends_with_one_sentence(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["serve", "--bundle", str(tmp_path / "none.bundle")])
    assert said.exit_code == 2
    assert "neither a directory nor a shipped bundle" in said.stderr
    assert "Traceback" not in said.output


# --- over a real engine: the policies differ in time alone, never in what they answer


def test_every_early_exit_policy_gives_each_puzzle_the_same_answer(tmp_path: Path) -> None:
    bundle = Bundle.open(write_tiny_bundle(tmp_path / "tiny.bundle"))
    bench = policies.bundle_bench(
        bundle,
        policies.questions_for(bundle, None, None, 9, seed=0),
        "fp32",
        None,
        num_slots=4,
        num_threads=1,
        cpu_clock=False,
    )
    bench = replace(bench, rule=HaltingPolicy(kind="learned", max_segments=9))
    answers: dict[str, dict[int, tuple[int, list[int]]]] = {}
    for policy in policies.POLICIES:
        results, _ = policies.serve(policy, bench)
        answers[policy.name] = {
            result.attempt_id: (result.segments, np.asarray(result.answer_T).tolist()) for result in results
        }
    assert {segments for segments, _ in answers.pop("fixed").values()} == {9}
    assert all(given == answers["refill"] for given in answers.values())


def test_the_command_measures_a_bundle_on_puzzles_from_a_file(tmp_path: Path) -> None:
    csv = tmp_path / "puzzles.csv"
    csv.write_text("source,question,answer,rating\nours,1.3.341.2143432.,1234341221434321,0\n")
    arguments = [
        "serve",
        "--bundle",
        str(write_tiny_bundle(tmp_path / "tiny.bundle")),
        "--csv",
        str(csv),
        "--slots",
        "2",
        "--json",
        "--cpu-clock",
    ]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    runs = json.loads(shown.stdout)["runs"]
    assert set(runs) == {policy.name for policy in policies.POLICIES}
    assert runs["refill"]["mean_segments"] == 6
    assert runs["refill"]["exact"] == runs["fixed"]["exact"] == 0
