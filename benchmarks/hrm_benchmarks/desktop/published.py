"""Compare the published step and evaluation loop with our engine, in CPU seconds of one thread.

The published step is `plain.PlainHRM`: the blocks of HRM and TRM, written from their formulas. Its
logits must equal those of our engine for equal weights. Weights are random, because the time of a
segment does not depend on them. The loops need a trained model, so they run a shipped one.
Read `segments` first. Shapes: R rounds, C contestants, B batch, T tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hrm_benchmarks import policies
from hrm_benchmarks.desktop import compare
from hrm_benchmarks.desktop.plain import PlainHRM
from hrm_benchmarks.desktop.training import PUBLISHED_SEGMENTS, initial
from hrm_benchmarks.report import RATIO, Rounds, Row, Step, beside_first, take_turns, tell
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.onnx import OnnxEngine
from hrm_export.recipe import write_graph
from hrm_export.segment import segment_graph
from hrm_model import checkpoint
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM, Carry
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions, questions_made
from hrm_puzzles.puzzle import RIGHT
from hrm_train.recipe import config_for

OURS = "ONNX Runtime, our engine"
EAGER = "published step, eager"
COMPILED = "published step, torch.compile"
REFILLED = "our loop, our engine"
FIXED = "16 fixed segments, our engine"
PUBLISHED_LOOP = "16 fixed segments, PyTorch eager"
LOOPS = (REFILLED, FIXED, PUBLISHED_LOOP)
PARAMETERS = 150_000  # size of the small models, as in `hrm-bench compare`
MODELS = ("hrm-6x6", "trm-6x6", "hrm-27m")
CHECKED_SEGMENTS = 2
LOGIT_TOLERANCE = 1e-3  # share of the largest logit
SLOTS = 8  # rows of a batch of the loops
COLUMNS = {
    "model": "{model}",
    "runs": "{name}",
    "CPU ms": "{cpu_ms:.2f}",
    "beside ours": RATIO,
    "proven": "{num_proven}",
    "logits apart": "{apart:.0e}",
    "note": "{note}",
}
LEGEND = """\
CPU ms: per segment of one puzzle; per proven answer if the row counts proven puzzles
beside ours: CPU time divided by that of our engine in the same round, median (quartiles)
logits apart: largest difference from our engine over the largest logit, after two segments"""


def config_of(model: str) -> HRMConfig:
    """Return the sizes of one of `MODELS`."""
    if model == "hrm-27m":
        return config_for("published", registry.get("sudoku"), 1)
    arch, size = model.split("-")
    return compare.config_of(arch, registry.get(f"sudoku-{size}"), PARAMETERS)


def segments(model: str, rounds: Rounds, *, compiled: bool) -> list[Row]:
    """Return a row for our engine and for each form of the published step.

    Raises ValueError if their logits differ.
    """
    names = [OURS, EAGER]
    if compiled:
        names.append(COMPILED)
    tell(f"{model}: {', '.join(names)}")
    greetings: list[Any] = []
    contestants = [partial(_segment, config_of(model), name) for name in names]
    seconds_RC = take_turns(contestants, rounds, greetings.extend)
    rows: list[Row] = []
    for row, logits in zip(_rows(model, names, seconds_RC), greetings, strict=True):
        if isinstance(logits, str):  # the reason why it did not compile
            missing = dict.fromkeys(("cpu_ms", "ratio", "ratio_low", "ratio_high", "apart"))
            rows.append({**row, **missing, "note": logits})
            continue
        apart = float(np.abs(logits - greetings[0]).max() / np.abs(greetings[0]).max())
        if not apart <= LOGIT_TOLERANCE:  # also for NaN
            raise ValueError(
                f"the logits of {row['name']!r} for {model} are {apart:.1e} apart from our "
                "engine's, so the work is not equal: report this as a fault of the benchmark."
            )
        rows.append({**row, "apart": apart})
    return rows


def loops(bundle: Bundle, source: Path, num_puzzles: int, rounds: Rounds) -> list[Row]:
    """Return a row for each loop: CPU time per proven answer for the checkpoint and its bundle."""
    tell(f"{bundle.manifest.name}: {', '.join(LOOPS)}")
    nums_proven: list[int] = []
    contestants = [partial(_loop, bundle.path, source, num_puzzles, name) for name in LOOPS]
    seconds_RC = take_turns(contestants, rounds, nums_proven.extend)
    seconds_RC = seconds_RC / np.maximum(1, nums_proven)
    rows: list[Row] = []
    for row, num_proven in zip(
        _rows(bundle.manifest.name, LOOPS, seconds_RC), nums_proven, strict=True
    ):
        rows.append({**row, "num_proven": num_proven})
    return rows


def _rows(
    model: str, names: Sequence[str], seconds_RC: NDArray[np.float64]
) -> Iterator[dict[str, Any]]:
    cpu_ms = (1e3 * np.median(seconds_RC, axis=0)).tolist()
    for index, ratio in enumerate(beside_first(seconds_RC)):
        row: dict[str, Any] = {"model": model, "name": names[index], "cpu_ms": cpu_ms[index]}
        row |= {"num_proven": None, "apart": None, "note": ""}
        yield {**row, **ratio}


def _segment(config: HRMConfig, name: str) -> tuple[NDArray[np.float32] | str, Step]:
    """Return the logits after two segments and the step that runs one more."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    tokens_BT = rng.integers(1, config.vocab_size, (1, config.seq_len), dtype=np.int32)
    model = initial(config)
    if name == OURS:
        step = _engine_step(model, tokens_BT)
    else:
        step = _published_step(model, tokens_BT, compiled=name == COMPILED)
    try:
        for _ in range(CHECKED_SEGMENTS - 1):
            step()
        return np.array(step()), step
    except RuntimeError as error:
        if name != COMPILED:
            raise
        reason = str(error).strip().splitlines()[0]
        return f"did not compile: {reason:.80}", _nothing


def _nothing() -> None:
    """Do nothing in the turn of a step that did not compile."""


def _engine_step(model: HRM, tokens_BT: NDArray[np.int32]) -> Callable[[], Any]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "step.onnx"
        write_graph(path, segment_graph(model))
        engine = OnnxEngine(path, num_slots=len(tokens_BT), num_threads=1, want_logits=True)
    vector_E = model.puzzle_table[0].numpy()
    for slot, tokens_T in enumerate(tokens_BT):
        engine.load(slot, tokens_T, vector_E)
    return lambda: engine.step(len(tokens_BT)).logits_BTV


def _published_step(
    model: HRM, tokens_BT: NDArray[np.int32], *, compiled: bool
) -> Callable[[], Any]:
    plain = PlainHRM(model.config)
    plain.load_state_dict(model.state_dict())
    plain.eval()
    tokens = torch.from_numpy(tokens_BT)
    vector_BE = plain.puzzle_table[torch.zeros(len(tokens), dtype=torch.long)]
    think = torch.compile(plain.think) if compiled else plain.think
    carry = Carry(*(state.clone() for state in plain.start(len(tokens))))

    @torch.no_grad()
    def step() -> torch.Tensor:
        nonlocal carry
        output = think(carry, tokens, vector_BE)
        carry = output.carry
        return output.logits_BTV

    return step


def _loop(path: Path, source: Path, num_puzzles: int, name: str) -> tuple[int, Step]:
    """Return how many puzzles a loop proves, and the loop over all of them."""
    bundle = Bundle.open(path)
    puzzle = bundle.puzzle
    difficulty = puzzle.difficulties[0]
    questions = questions_made(puzzle, num_puzzles, difficulty=difficulty, seed=0)
    if name == PUBLISHED_LOOP:
        torch.set_num_threads(1)
        model, _ = checkpoint.load(checkpoint.resolve(source))
        run = partial(_published_loop, model, puzzle, questions)
    else:
        run = _engine_loop(bundle, questions, name)
    return run(), run


@torch.no_grad()
def _published_loop(model: HRM, puzzle: Any, questions: Questions) -> int:
    """Run every segment of every batch, as the published evaluation does; return the proven."""
    num_proven = 0
    for first in range(0, len(questions), SLOTS):
        tokens_BT = questions.tokens_NT[first : first + SLOTS]
        tokens = torch.from_numpy(tokens_BT)
        ids_B = torch.zeros(len(tokens), dtype=torch.long)
        output = model.segment(model.start(len(tokens)), tokens, ids_B)
        for _ in range(PUBLISHED_SEGMENTS - 1):
            output = model.segment(output.carry, tokens, ids_B)
        answers_BT = output.logits_BTV.argmax(-1).numpy().astype(np.int32)
        num_proven += int((puzzle.check_BT(tokens_BT, answers_BT) == RIGHT).sum())
    return num_proven


def _engine_loop(bundle: Bundle, questions: Questions, name: str) -> Callable[[], int]:
    bench = policies.bundle_bench(
        bundle,
        questions,
        precision="fp32",
        kind=None,
        num_slots=SLOTS,
        num_threads=1,
        cpu_clock=True,
    )
    policy = policies.REFILL
    if name == FIXED:
        policy = policies.FIXED
        bench = replace(bench, rule=replace(bench.rule, max_segments=PUBLISHED_SEGMENTS))

    def run() -> int:
        attempts, _ = policies.serve(policy, bench)
        return sum(attempt.verified is True for attempt in attempts)

    return run
