"""What a segment costs, and what a board costs compared with the training board."""

from hrm_calibration.halting_curve import Score
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.engines.engine import load_blanks, median_step_ms
from hrm_export.forms import Graphs, Measured, measure
from hrm_export.options import Options
from hrm_host.machine import num_cores
from hrm_host.progress import Stages
from hrm_puzzles.data.sources import questions_made

MEASURE_S = 0.1
"""Short, because the times are only shown."""


def segment_ms(served: ServedGraph, graph: Graphs, batch: int) -> float:
    """Median time of a segment with every slot in use, on all cores."""
    with served.engine(graph.on_cpu, num_slots=batch) as engine:
        load_blanks(engine, served.puzzle_table[0])
        return median_step_ms(engine, batch, seconds=MEASURE_S, min_steps=1)


def report_board_cost(
    served: ServedGraph,
    measured: Measured,
    trained: ServedGraph,
    options: Options,
    stages: Stages,
) -> None:
    """Report what the exported board and the training board cost, in float32.

    Call it before the search for golden traces, which may fail on a board that the model does not
    know.
    """
    num_puzzles = measured.score.num_puzzles
    questions = questions_made(trained.puzzle, num_puzzles, num_workers=num_cores())
    graphs = Graphs(precision="fp32", portable=trained.graph)
    before = measure(graphs, trained, questions, options.threshold, stages)
    stages.say(cost_of(trained, before))
    stages.say(cost_of(served, measured))


def cost_of(served: ServedGraph, measured: Measured) -> str:
    time_ms = segment_ms(served, measured.graphs, batch=1)
    return cost_sentence(served.puzzle.name, measured.score, time_ms)


def cost_sentence(board: str, score: Score, time_ms: float) -> str:
    solved = f"{score.proven:.1%} of {score.num_puzzles} proven"
    return f"{board}: {solved} in {score.mean_segments:.1f} segments of {time_ms:.2f} ms"
