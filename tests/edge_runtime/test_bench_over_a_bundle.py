"""The serving benchmark over a real engine: the policies differ in time alone, never in what they answer."""

import json
import time
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from hrm_benchmarks.benches import bundle_bench, questions_for
from hrm_benchmarks.commands import app
from hrm_benchmarks.policies import POLICIES, serve
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.bundle import Bundle

LEARNED = HaltingPolicy(kind="learned", max_segments=9)


def test_every_early_exit_policy_gives_each_puzzle_the_same_answer(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    bench = bundle_bench(
        bundle,
        questions_for(bundle, None, None, 9, seed=0),
        precision="fp32",
        policy=LEARNED,
        num_slots=4,
        num_threads=1,
        cpu_clock=False,
    )
    answers: dict[str, dict[int, tuple[int, list[int]]]] = {}
    for policy in POLICIES:
        run = serve(policy, bench.engine, bench.puzzle, bench.jobs, clock=time.perf_counter)
        answers[policy.name] = {
            result.attempt_id: (result.segments, np.asarray(result.answer_T).tolist()) for result in run.results
        }
    assert {segments for segments, _ in answers.pop("fixed").values()} == {9}
    assert all(given == answers["refill"] for given in answers.values())


def test_the_command_measures_a_bundle_on_puzzles_from_a_file(tiny_bundle: Path, tmp_path: Path) -> None:
    csv = tmp_path / "puzzles.csv"
    csv.write_text("source,question,answer,rating\nours,1.3.341.2143432.,1234341221434321,0\n")
    arguments = ["serve", "--bundle", str(tiny_bundle), "--csv", str(csv), "--slots", "2", "--json", "--cpu-clock"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    runs = json.loads(shown.stdout)["runs"]
    assert set(runs) == {policy.name for policy in POLICIES}
    assert runs["refill"]["mean_segments"] == 6
    assert runs["refill"]["exact"] == runs["fixed"]["exact"] == 0
