"""The subcommands of `hrm-bench`: each says what it found, and `measured` prints that.

What is imported at the top must bring neither ONNX Runtime nor PyTorch.
"""

import asyncio
import itertools
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from hrm_benchmarks.report import Rounds, Row, leaving_at_sigterm, paper, print_json, print_table, tell
from hrm_edge_runtime.contract.halting import PolicyKind
from hrm_host.command import Command

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.bundle import Bundle

app = Command("hrm-bench", extra="serve,bench", no_args_is_help=True)
"""Entry point of `hrm-bench`."""

SHARES = (0.5, 0.8, 0.95)
PROMISED = ("sudoku", "sudoku-6x6 --engine cpu:int8")
ATTEMPTS = (1, 4, 16, 64)
DESKTOP = "train,serve,bench"
COMPARED = ("sudoku-4x4", "sudoku-6x6", "logistics-6x6")

BundleName = Annotated[str | None, typer.Option(help="Bundle's directory or shipped name; else the default.")]
Csv = Annotated[Path | None, typer.Option(help="Puzzles in Sudoku-Extreme form; else generated.")]
Difficulty = Annotated[str | None, typer.Option(help="Of generated puzzles; else the easiest.")]
Segments = Annotated[str, typer.Option(help="geo3 geo5 geo8 bim3 bim5 bim8, or a recorded JSON.")]
StepMs = Annotated[float, typer.Option(min=0, help="What a step costs.")]
StepCost = Annotated[Literal["flat", "half", "linear"], typer.Option(help="How that grows with the rows of a step.")]
TurnRounds = Annotated[int, typer.Option(min=1, help="How often each takes its turn; figures are medians.")]
TurnS = Annotated[float, typer.Option(min=0, help="Seconds of one turn, at least a step.")]
CpuClock = Annotated[bool, typer.Option(help="Count CPU seconds, for a machine with other work.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, with all that was found, in place of the table.")]


@app.callback()
def bench() -> None:
    """Measure what serving and training cost, beside honest baselines."""


class Found(NamedTuple):
    figures: Row  # for --json; `faults` among them end the command with 1
    show: Callable[[], object]  # for people
    title: str = ""


def measured(example: str, **settings: Any) -> Callable[[Callable[..., Found]], Callable[..., None]]:
    """Makes a command of a function that measures, with the option --json; `settings` as of `Command.command`."""

    def command_of(function: Callable[..., Found]) -> Callable[..., None]:
        @wraps(function)
        def command(json: bool, **options: Any) -> None:
            with leaving_at_sigterm():
                found = function(**options)
            if json:
                print_json({"title": found.title, **options}, **found.figures)
            else:
                found.show()
            raise typer.Exit(1 if found.figures.get("faults") else 0)

        stated, own = signature(function), Parameter("json", Parameter.KEYWORD_ONLY, default=False, annotation=Json)
        command.__dict__["__signature__"] = stated.replace(parameters=[*stated.parameters.values(), own])
        return app.command(epilog=f"Example: hrm-bench {example}", **settings)(command)

    return command_of


def _opened(name: str | None) -> "Bundle":
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle

    return Bundle.open(find_bundle(name))


@measured(
    "serve --bundle model.bundle --csv test.csv --puzzles 64 --slots 4",
    groups={
        "Bundle": "bundle csv difficulty precision policy threads cpu_clock",
        "Script": "segments step_ms cost virtual_time",
    },
)
def serve(
    bundle: Annotated[str | None, typer.Option(help="Engine to measure: a bundle's directory or shipped name.")] = None,
    csv: Csv = None,
    difficulty: Difficulty = None,
    precision: Annotated[str, typer.Option(help="Which of its graphs.")] = "fp32",
    policy: Annotated[PolicyKind | None, typer.Option(help="Halting rule; else its own.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the engine, under every policy.")] = 1,
    cpu_clock: Annotated[bool, typer.Option(help="Count CPU seconds, for a machine with other work.")] = False,
    segments: Segments = "geo5",
    step_ms: StepMs = 20.0,
    cost: StepCost = "flat",
    virtual_time: Annotated[bool, typer.Option(help="Count the time instead of spending it.")] = False,
    slots: Annotated[int, typer.Option(min=1, help="Slots; the batch of the policies that batch.")] = 8,
    puzzles: Annotated[int, typer.Option(min=1, help="How many, the same under every policy.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="How often; figures are medians.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of puzzles and scripts.")] = 0,
) -> Found:
    """Serve the same puzzles under five policies: refill, fixed, wait for the slowest, compaction, one at a time.

    Without --bundle a scripted engine stands in for the model, so that the figures are the batching's own.
    """
    from hrm_benchmarks import policies
    from hrm_benchmarks.scripted import Scripted

    if bundle is None:
        script = Scripted(segments=segments, puzzles=puzzles, slots=slots, step_ms=step_ms, cost=cost, seed=seed)
        made = policies.scripted_bench(script, virtual=virtual_time)
    else:
        opened = _opened(bundle)
        asked = policies.questions_for(opened, csv, difficulty, puzzles, seed)
        made = policies.bundle_bench(opened, asked, precision, policy, slots, threads, cpu_clock=cpu_clock)
    found = policies.measure(made, rounds=rounds)
    made.engine.close()
    return Found({"runs": found}, partial(policies.print_figures, made.title, found), made.title)


@measured("segment --checkpoint model/checkpoints/sudoku --batch 1 --batch 8")
def segment(
    bundle: BundleName = None,
    engine: Annotated[
        list[str] | None, typer.Option(help="ENGINE[:PRECISION], may be repeated; else cpu in each precision.")
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Also PyTorch, eager and compiled, with its weights.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Puzzles in a step, may be repeated. [1, 8]")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every engine.")] = 1,
    rounds: TurnRounds = 9,
    turn_s: TurnS = 0.5,
    cpu_clock: CpuClock = False,
) -> Found:
    """Time one segment on every engine, in turns."""
    from hrm_benchmarks import segments

    opened, batches, plan = _opened(bundle), batch or [1, 8], Rounds(number=rounds, turn_s=turn_s, cpu_clock=cpu_clock)
    engines = engine or [f"cpu:{precision}" for precision in opened.manifest.precisions]
    found = segments.measure(opened, engines, batches, plan, num_threads=threads, checkpoint=checkpoint)
    title = f"{opened.manifest.name}, {threads} threads, {plan.title}"
    show = partial(print_table, title, segments.COLUMNS, found, caption=segments.CAPTION, left=["engine"])
    return Found({"runs": found}, show, title)


@measured("train --preset small --threads 1 --rounds 9 --compile", extra=DESKTOP)
def train(
    preset: Annotated[str, typer.Option(help="Model size: small, log or published.")] = "small",
    puzzle: Annotated[str, typer.Option(help="Which puzzle; some are generated as training rows.")] = "sudoku",
    batch: Annotated[int, typer.Option(min=1, help="Rows of one update, under every trainer.")] = 32,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of each; without it, all cores.")] = None,
    rounds: TurnRounds = 9,
    turn_s: TurnS = 1.0,
    compiled: Annotated[bool, typer.Option("--compile", help="Our trainer also through torch.compile.")] = False,
    cpu_clock: CpuClock = False,
) -> Found:
    """Train by the published step, written plainly, and by our trainer, in turns and with equal losses."""
    from hrm_benchmarks.desktop import training

    plan = Rounds(number=rounds, turn_s=turn_s, cpu_clock=cpu_clock)
    with TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        trainers = training.contestants(preset, puzzle, data, batch_size=batch, num_threads=threads, compiled=compiled)
        found = training.measure(trainers, plan)
    title = f"{preset}, {puzzle}, batch {batch}, {trainers[0].num_threads} threads, {plan.title}"
    show = partial(print_table, title, training.COLUMNS, found, caption=training.LEGEND, left=["trainer"])
    return Found({"machine": {"torch": training.torch.__version__}, "runs": found}, show, title)


@measured("compare --cpu-s 25 --seed 0 --seed 1 --out compare", extra=DESKTOP)
def compare(
    puzzle: Annotated[
        list[str] | None, typer.Option(help="May be repeated. [sudoku-4x4, sudoku-6x6, logistics-6x6]")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(min=0, help="Of weights and rows, may be repeated. [0, 1]")] = None,
    cpu_s: Annotated[float, typer.Option(min=0, help="CPU seconds of each training.")] = 25.0,
    parameters: Annotated[int, typer.Option(min=1, help="Of each model, about.")] = 150_000,
    puzzles: Annotated[tuple[int, int], typer.Option(help="Training and held-out puzzles of each kind.")] = (2000, 200),
    out: Annotated[Path, typer.Option(help="Folder for the table (.json and .md) and a picture.")] = Path("compare"),
) -> Found:
    """Train HRM, TRM, a transformer and relational blocks on the same puzzles for the same CPU time."""
    from hrm_benchmarks.desktop import compare
    from hrm_puzzles.data.build import DataRecipe, build

    found = list[Row]()
    with TemporaryDirectory() as folder:
        for name, arch in itertools.product(puzzle or COMPARED, compare.ARCHS):
            if not (data := Path(folder) / name).exists():
                build(DataRecipe(puzzle=name, num_train=puzzles[0], num_test=puzzles[1]), data)
            found.append(compare.measure(arch, data, seed or (0, 1), cpu_s=cpu_s, num_parameters=parameters))
            compare.save(out, found)  # so far
            tell(f"{name}, {arch}: {found[-1]['exact']} % exact")
    title = f"{cpu_s:g} CPU s each, {puzzles[0]} puzzles, {puzzles[1]} held out; written: {out}"
    return Found({"runs": found}, partial(print_table, title, compare.COLUMNS, found, caption=compare.LEGEND), title)


@measured(
    "accuracy --bundle sudoku --bundle mine.bundle --questions hard.txt --attempts 1",
    groups={"Puzzles": "questions puzzles difficulty seed", "Engine": "engine slots threads"},
)
def accuracy(
    bundle: Annotated[
        list[str] | None, typer.Option(help="Bundle's directory or shipped name, may be repeated; else the default.")
    ] = None,
    questions: Annotated[
        Path | None, typer.Option(help="One in each line, CSV in the published form, or NDJSON; else generated.")
    ] = None,
    difficulty: Annotated[str | None, typer.Option(help="Of generated puzzles; else the hardest.")] = None,
    puzzles: Annotated[int, typer.Option(min=1, help="How many: the first of the file, or so many generated.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of generated puzzles.")] = 0,
    attempts: Annotated[
        list[int] | None, typer.Option(min=1, max=1024, help="Attempts at each, may be repeated. [1, 4, 16, 64]")
    ] = None,
    max_segments: Annotated[int | None, typer.Option(min=1, help="Of each attempt; else the model's limit.")] = None,
    how: Annotated[str | None, typer.Option(help="plain or hypotheses, as in hrm-solve.")] = None,
    engine: Annotated[str, typer.Option(metavar="ENGINE[:PRECISION]", help="As in hrm-serve.")] = "auto",
    slots: Annotated[int, typer.Option(min=1, help="Attempts in one batch.")] = 16,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the engine.")] = 1,
) -> Found:
    """Solve the same puzzles with each model and number of attempts, and count the CPU time to a proven answer."""
    from hrm_benchmarks import accuracy

    models, found = [_opened(name) for name in bundle or [None]], list[Row]()
    puzzle = accuracy.provable(models)
    known = (
        accuracy.puzzles_from_file(questions, puzzle, puzzles)
        if questions is not None
        else accuracy.generated(puzzle, difficulty or puzzle.difficulties[-1], puzzles, seed)
    )
    for opened, level in itertools.product(models, attempts or ATTEMPTS):
        limits = {"max_segments": max_segments, "how": how}
        row = accuracy.measured(opened, engine, known, level, slots, threads, limits)
        found.append(row)
        tell(accuracy.PROGRESS.format(**row))
    title = f"{puzzle.name}, {len(known)} puzzles, up to {max_segments or 'all'} segments, {engine}, {threads} threads"
    show = partial(print_table, title, accuracy.COLUMNS, found, caption=accuracy.LEGEND, left=["model"])
    return Found({"levels": found}, show, title)


@measured(
    "load --bundle sudoku-6x6 --difficulty minimal",
    groups={"Bundle": "bundle engine threads csv difficulty", "Script": "segments step_ms cost"},
)
def load(
    bundle: Annotated[str, typer.Option(help="Bundle's directory or shipped name, or 'script'.")] = "sudoku",
    engine: Annotated[str, typer.Option(metavar="ENGINE[:PRECISION]", help="As in hrm-serve.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Threads of its engine.")] = 1,
    csv: Csv = None,
    difficulty: Difficulty = None,
    segments: Segments = "geo5",
    step_ms: StepMs = 20.0,
    cost: StepCost = "half",
    slots: Annotated[int, typer.Option(min=1, help="Slots of the server.")] = 4,
    queue_limit: Annotated[int, typer.Option(min=0, help="Places of its queue.")] = 64,
    puzzles: Annotated[int, typer.Option(min=1, help="How many different ones.")] = 200,
    seconds: Annotated[float, typer.Option(min=1, help="How long each load is offered.")] = 60.0,
    saturation_s: Annotated[float, typer.Option(min=1, help="How long capacity is measured.")] = 20.0,
    share: Annotated[list[float] | None, typer.Option(help="Load, may be repeated. [0.5, 0.8, 0.95]")] = None,
    slo_ms: Annotated[float | None, typer.Option(help="Goodput: answers within; else 5 full services.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of puzzles and arrivals.")] = 0,
) -> Found:
    """Offer Poisson arrivals at shares of the server's measured capacity, and compare with a simulation."""
    from hrm_benchmarks import load, policies, server
    from hrm_benchmarks.scripted import Scripted

    if bundle == "script":
        of_engine = Scripted(segments=segments, step_ms=step_ms, cost=cost, slots=slots, puzzles=puzzles, seed=seed)
        target = server.scripted_target(replace(of_engine, queue_limit=queue_limit))
    else:
        opened = _opened(bundle)
        asked = policies.questions_for(opened, csv, difficulty, puzzles, seed)
        target = server.bundle_target(opened, asked, engine, threads=threads, num_slots=slots, queue_limit=queue_limit)
    shares, slo_s = share or SHARES, None if slo_ms is None else slo_ms / 1e3
    with server.running(target.command) as running:
        measuring = load.measure(
            running, target, shares, seconds=seconds, saturation_s=saturation_s, slo_s=slo_s, seed=seed
        )
        found = asyncio.run(measuring)
    return Found(found, partial(load.print_report, target.title, found), target.title)


@measured("soak --requests 1000000 --json > soak.json")
def soak(
    requests: Annotated[int, typer.Option(min=1, help="How many, half of them as lines of batches.")] = 100_000,
    streams: Annotated[int, typer.Option(min=1, help="Connections that send batches.")] = 4,
    singles: Annotated[int, typer.Option(min=1, help="Connections that ask for one puzzle after another.")] = 16,
    slots: Annotated[int, typer.Option(min=1, help="Slots of the server.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Of the puzzles.")] = 0,
) -> Found:
    """Send very many requests to a server over a scripted engine: each answered once and right, and nothing leaks."""
    from hrm_benchmarks import processes
    from hrm_benchmarks.scripted import Scripted
    from hrm_benchmarks.server import running, scripted_target

    target = scripted_target(Scripted(segments="geo3", slots=slots, queue_limit=8 * slots, seed=seed))
    with running(target.command) as server:
        found = asyncio.run(processes.soak(server, target, requests, num_streams=streams, num_singles=singles))
    return Found(found, partial(processes.print_soak, found), target.title)


@measured("chaos --minutes 10 --json > chaos.json")
def chaos(
    bundle: Annotated[str, typer.Option(help="Bundle's directory or shipped name.")] = "sudoku-6x6",
    minutes: Annotated[float, typer.Option(min=0.05, help="How long.")] = 10.0,
    every_s: Annotated[float, typer.Option(min=0.1, help="Seconds between two troubles.")] = 3.0,
    puzzles: Annotated[int, typer.Option(min=1, help="How many different ones.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of puzzles and troubles.")] = 0,
    attack: Annotated[
        str | None,
        typer.Option(help="This attack alone (all: one after another), and how soon /livez answers beside it."),
    ] = None,
    senders: Annotated[int, typer.Option(min=1, help="Of the attack: how many at once.")] = 8,
) -> Found:
    """Kill, stop, reload, flood and stall a server: others are answered once and right, or told why not."""
    from hrm_benchmarks import attacks, chaos, policies, server

    opened = _opened(bundle)
    if attack is not None:
        command = server.serve_command(str(opened.path), "--engine=cpu", "--threads=1", "--slots=4", "--queue-limit=16")
        names = attacks.NAMES if attack == "all" else [attack]
        if unknown := set(names) - set(attacks.NAMES):
            raise typer.BadParameter(f"{unknown} is no attack: use all or one of {', '.join(attacks.NAMES)}")
        found = {name: attacks.attacked(command, name, senders=senders, seconds=60 * minutes) for name in names}
    else:
        asked = policies.questions_for(opened, None, None, puzzles, seed)
        found = chaos.measure(opened, asked, seconds=60 * minutes, every_s=every_s, seed=seed)
    lines = [f"{name}: {shown}" for name, shown in found.items()]
    return Found(found, partial(paper().print, *lines, sep="\n", highlight=False))


@measured("throughput --offered 2000")
def throughput(
    offered: Annotated[float, typer.Option(min=1, help="Puzzles per second offered through /solve/batch.")] = 2000.0,
    connections: Annotated[int, typer.Option(min=1, help="Connections for the ceiling of /solve.")] = 32,
    seconds: Annotated[float, typer.Option(min=1, help="How long each way in is measured.")] = 10.0,
    slots: Annotated[int, typer.Option(min=1, help="Slots of the server.")] = 32,
) -> Found:
    """Send as many puzzles through HTTP as it takes, over a scripted engine that costs nothing."""
    from hrm_benchmarks import processes
    from hrm_benchmarks.scripted import Scripted
    from hrm_benchmarks.server import running, scripted_target

    target = scripted_target(Scripted(segments="geo3", slots=slots, queue_limit=16 * slots))
    with running(target.command) as server:
        passing = processes.throughput(server, target, offered, connections=connections, seconds=seconds)
        found = asyncio.run(passing)
    show = partial(print_table, target.title, processes.PASSAGE_COLUMNS, found)
    return Found({"passages": found}, show, target.title)


@measured("start --server 'sudoku-6x6 --engine cpu:int8' --rounds 5")
def start(
    server: Annotated[
        list[str] | None, typer.Option(help="Arguments of hrm-serve, may be repeated; else the two that are promised.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each, after one that does not count.")] = 3,
) -> Found:
    """Time hrm-serve from its start until it is ready, and weigh both processes."""
    from hrm_benchmarks import processes

    found = [processes.start(shlex.split(one), rounds=rounds) for one in server or PROMISED]
    return Found({"starts": found}, partial(print_table, "", processes.START_COLUMNS, found, left=["hrm-serve"]))
