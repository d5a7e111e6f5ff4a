"""`hrm models` lists bundles, by default those in the package; `hrm demo` shows them solve held-out puzzles."""

import json
import shlex
from typing import Annotated, Any, Literal

import typer

from hrm_host.command import Command

KINDS = {"sudoku": "sudoku", "maze": "maze-8x8", "city": "logistics-6x6", "arc": "arc-7x7"}
NEXT_STEPS = """
Next:
  hrm serve                       # all models, and a page to try them on: http://127.0.0.1:8000
  hrm models                      # what each of them solves and how well, with a puzzle to copy
  hrm solve FILE --bundle {name}  # your own puzzles, one in each line
"""

models = Command("hrm models")
demo = Command("hrm demo")


@models.command(epilog="Examples: hrm models; hrm models my.bundle --json")
def list_models(
    bundles: Annotated[
        list[str] | None, typer.Argument(help="Bundle directories; without any, the shipped ones.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """List models: board, size, the share of held-out puzzles they solve, how a puzzle is written, and one to try."""
    from hrm_edge_runtime.contract.shipped import shipped_bundles

    found = [about(name) for name in bundles or shipped_bundles()]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for model in found:
        print(f"{model['name']}: {model['kind']}, {model['board']}, {model['size_kb']} KB; {accuracy_text(model)}")
        print(f"  {(model['notation'] or '').partition(';')[0]}\n  {model['example']}\n")


def about(name: str) -> dict[str, Any]:
    """What a bundle's own files say, read without opening an engine; None where they do not say it.

    `solved` and `solved_16_attempts` are shares of `held_out` puzzles: those stated in its provenance, else the best of
    the curve that chose its halting threshold.
    """
    from hrm_edge_runtime.api.served_model import board_size
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle
    from hrm_puzzles.puzzle import Described

    bundle = Bundle.open(find_bundle(name))
    manifest, puzzle = bundle.manifest, bundle.puzzle
    sample, size = bundle.golden_example(), board_size(puzzle)
    question = sample[0] if sample else puzzle.sample(bundle.tasks())
    text = question.replace("\n", "") if isinstance(question, str) else json.dumps(question)
    curve = manifest.curves.get("fp32")
    measured = {"held_out": curve and curve.num_puzzles, "solved": curve and max(point.exact for point in curve.points)}
    stated = {key: manifest.provenance.get(key) for key in ("held_out", "solved", "solved_16_attempts")}
    return {
        "name": manifest.name,
        "kind": puzzle.name,
        "board": "x".join(map(str, size)) if size else None,
        "size_kb": round(manifest.files[manifest.precisions["fp32"]].size_bytes / 1000),
        **(stated if stated["solved"] is not None else {**stated, **measured}),
        "proof_exists": puzzle.proof_exists,
        "notation": puzzle.about if isinstance(puzzle, Described) else None,
        "example": f"hrm solve {shlex.quote(text)} --bundle {shlex.quote(name)}",
    }


def accuracy_text(model: dict[str, Any]) -> str:
    if model["solved"] is None:
        return "not measured"
    more = model["solved_16_attempts"]
    word = "proves" if model["proof_exists"] else "right on"
    text = f"{word} {100 * model['solved']:.1f} % of {model['held_out']} held out"
    return text if more is None else f"{text}, {100 * more:.1f} % with 16 attempts"


@demo.command(epilog="Example: hrm demo maze")
def show(
    kind: Annotated[
        Literal["sudoku", "maze", "city", "arc"] | None, typer.Argument(help="Without one, a puzzle of each.")
    ] = None,
) -> None:
    """Solve a held-out puzzle of each kind with the models in the package, and draw the answers."""
    from rich.console import Console

    from hrm_edge_runtime.api.schema import SolveAnswer
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle
    from hrm_edge_runtime.engines.factory import prepare
    from hrm_edge_runtime.solve import output, solvers

    console = Console()
    for name in [KINDS[kind]] if kind else KINDS.values():
        bundle = Bundle.open(find_bundle(name))
        example = bundle.golden_example()
        assert example is not None, "every shipped bundle carries golden traces"
        entry = solvers.Entry(number=1, fields={"puzzle": example[0]}, known=example[1])
        solver = solvers.from_bundle(bundle, prepare(bundle, num_slots=1), num_slots=1)
        ((_, reply),) = solvers.solve_in_order(solver, iter([entry]), {})
        answer = output.judged(solver, entry, reply)
        assert isinstance(answer, SolveAnswer), "a golden puzzle is a puzzle"
        console.print(f"\n$ {about(name)['example']}\n", markup=False, highlight=False, soft_wrap=True)
        console.print(output.board(bundle.puzzle, entry.puzzle, answer.solution))
        console.print(output.summary(answer), markup=False, highlight=False)
    print(NEXT_STEPS.format(name=KINDS[kind or "sudoku"]), end="")
