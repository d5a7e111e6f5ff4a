"""`hrm models` lists bundles; `hrm demo` solves held-out puzzles with shipped models."""

import json
from statistics import mode
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hrm_edge_runtime.contract.shipped import open_bundle, shipped_bundles
from hrm_host.command import AsJson, Command, runnable
from hrm_host.progress import stages_on
from hrm_host.reading import printable_lines

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.bundle import Bundle

KINDS = {"sudoku": "sudoku", "maze": "maze-8x8", "city": "logistics-6x6", "arc": "arc-7x7"}
TIMED = ("fp32", "fp16", "int8")
NOTHING = "–"
NOTES = """
{architectures}
Held out: the share proven; of ARC, which has no proof, the share right.
fp32, fp16, int8: ms of a segment; {hrm} models --measure times them on this CPU,
and --engine auto runs what has a *.
A card, and a puzzle to copy: {hrm} models {name}"""
NEXT_STEPS = """
Next:
  {hrm} serve    # all models, and a page to try them: http://127.0.0.1:8000
  {hrm} models   # what each model solves and how well
  {hrm} solve FILE --bundle {name}  # your own puzzles, one per line
"""

models = Command("hrm models")
demo = Command("hrm demo")


@models.command(epilog="Examples: hrm models; hrm models sudoku")
def list_models(
    bundles: Annotated[
        list[str] | None,
        typer.Argument(
            help="Bundles, by name or directory, whose cards to print. Default: a table of all."
        ),
    ] = None,
    measured: Annotated[
        bool,
        typer.Option("--measure", help="Time every precision on this CPU; auto runs the fastest."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List models: board, accuracy on held-out puzzles, size, and time of a segment on this CPU.

    Of a named model, print its card and a command that solves a puzzle with it.
    """
    names = list(bundles or shipped_bundles())
    if measured:
        _measure(names)
    elif bundles and not as_json:
        _print_cards(bundles)
        return
    found = [about(name) for name in names]
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _print_table(found)


def _print_cards(names: list[str]) -> None:
    from hrm_edge_runtime.contract.card import card_of

    for name in names:
        bundle = open_bundle(name)
        print(printable_lines(card_of(bundle.manifest, bundle.puzzle, bundle.path)))
        print(_example_command(bundle, name))


def _measure(names: list[str]) -> None:
    from hrm_edge_runtime.engines import times

    with stages_on() as stages:
        for number, name in enumerate(names):
            stages.show(f"timing {name}", number, len(names))
            times.measure(open_bundle(name))


def _print_table(found: list[dict[str, Any]]) -> None:
    """Print one row for each model, at most 80 columns wide."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("model", overflow="fold")
    table.add_column("board", no_wrap=True)
    for heading in ("held out", "16 tries", "size", *TIMED):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in found:
        times = [_time_cell(model, precision) for precision in TIMED]
        board = model["board"] or NOTHING
        size = f"{model['size_kb']} KB"
        table.add_row(model["name"], board, *_accuracy_cells(model), size, *times)
    Console().print(table)
    notes = {"hrm": runnable("hrm"), "name": found[0]["name"]}
    print(NOTES.format(architectures=_architectures(found), **notes))


def _architectures(found: list[dict[str, Any]]) -> str:
    """Which models have which network: the most common one is that of the others."""
    network_of = {model["name"]: model["architecture"] for model in found}
    common = mode(network_of.values())
    rare = [f"{name}: {network}; " for name, network in network_of.items() if network != common]
    others = "the others" if rare else "all"
    return f"{''.join(rare)}{others}: {common}"


def _accuracy_cells(model: dict[str, Any]) -> tuple[str, str]:
    if model["solved"] is None:
        return NOTHING, NOTHING
    with_attempts = NOTHING
    if model["solved_16_attempts"] is not None:
        with_attempts = f"{100 * model['solved_16_attempts']:.1f} %"
    return f"{100 * model['solved']:.1f} % of {model['held_out']}", with_attempts


def _time_cell(model: dict[str, Any], precision: str) -> str:
    """Milliseconds, with a star if `auto` runs this precision."""
    time_ms = model["segment_ms"].get(precision)
    if time_ms is None:
        return NOTHING
    star = "*" if model["auto"] == precision else " "
    return f"{time_ms:.2f}{star}"


def about(name: str) -> dict[str, Any]:
    """Describe a bundle from its files, without opening an engine; None for unknown values."""
    from hrm_edge_runtime.api.served_model import board_size
    from hrm_edge_runtime.contract.card import accuracy_of, architecture_of
    from hrm_edge_runtime.engines import times

    bundle = open_bundle(name)
    manifest = bundle.manifest
    puzzle = bundle.puzzle
    results = manifest.held_out_tasks
    graph = manifest.files[manifest.precisions["fp32"]]
    board = None
    size = board_size(puzzle)
    if size is not None:
        board = "x".join(map(str, size))
    return {
        "name": manifest.name,
        "kind": puzzle.name,
        "architecture": architecture_of(manifest),
        "board": board,
        "size_kb": round(graph.size_bytes / 1000),
        "segment_ms": times.kept(bundle),
        "auto": times.fastest(bundle) or "fp32",
        **accuracy_of(manifest),
        "held_out_tasks": results and results.model_dump(),
        "proof_exists": puzzle.proof_exists,
        "example": _example_command(bundle, name),
    }


def _example_command(bundle: "Bundle", name: str) -> str:
    """A command that solves a held-out puzzle, or the puzzle's own sample if there is none."""
    example = bundle.example()
    if example is not None:
        question, _ = example
    else:
        question = bundle.puzzle.sample(bundle.tasks())
    if isinstance(question, str):
        text = question.replace("\n", "")
    else:
        text = json.dumps(question)
    command = runnable("hrm", "solve", text, "--bundle", name)
    results = bundle.manifest.held_out_tasks
    if results is not None:  # so many attempts solved its task
        command += f" --attempts {results.attempts}"
    return command


@demo.command(epilog="Example: hrm demo maze")
def show(
    kind: Annotated[
        Literal["sudoku", "maze", "city", "arc"] | None,
        typer.Argument(help="Kind of puzzle. Default: one of each."),
    ] = None,
) -> None:
    """Solve a held-out puzzle of each kind with the shipped models, and draw the answers."""
    names = list(KINDS.values()) if kind is None else [KINDS[kind]]
    for name in names:
        _demonstrate(name)
    print(NEXT_STEPS.format(hrm=runnable("hrm"), name=names[0]), end="")


def _demonstrate(name: str) -> None:
    from hrm_edge import output, puzzles, solvers

    bundle = open_bundle(name)
    example = bundle.example()
    assert example is not None, "every shipped bundle has golden traces"
    question, known = example
    results = bundle.manifest.held_out_tasks
    fields = {"puzzle": question}
    if results is not None:
        fields["attempts"] = results.attempts
    entry = puzzles.Entry(number=1, fields=fields, known=known)
    solver = solvers.from_bundles([bundle], num_slots=1)
    ((_, reply),) = solvers.solve_in_order(solver, iter([entry]), {})
    print(f"\n$ {_example_command(bundle, name)}\n")
    print(output.board(solver, entry, reply))
    if results is not None:
        share = f"{len(results.right)} of {results.num_tasks} tasks"
        print(f"{name} is right on {share} with {results.attempts} attempts.")
