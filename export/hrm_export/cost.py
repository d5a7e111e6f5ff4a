"""What an exported board costs compared with the training board."""

from contextlib import ExitStack
from dataclasses import replace

from hrm_calibration.halting_curve import Score
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.engines import cpu_times
from hrm_edge_runtime.engines.engine import Engine, load_blanks
from hrm_edge_runtime.engines.onnx import CPU
from hrm_export.forms import Graphs, Measured, measure
from hrm_export.options import Options
from hrm_host.board import num_cores
from hrm_host.progress import Stages
from hrm_puzzles.data.sources import questions_made


def report_board_cost(
    served: ServedGraph,
    measured: Measured,
    trained: ServedGraph,
    options: Options,
    stages: Stages,
    end_s: float,
) -> None:
    """Report what the exported board and the training board cost, in float32.

    The training board runs as many puzzles, or those that begin before `end_s`. Call it before the
    search for golden traces, which may fail on a board that the model does not know.
    """
    num_puzzles = measured.score.num_puzzles
    questions = questions_made(trained.puzzle, num_puzzles, num_workers=num_cores())
    graphs = Graphs(precision="fp32", portable=trained.graph)
    before = measure(graphs, trained, questions, options.threshold, stages, end_s)
    scores = {trained.puzzle.name: before.score, served.puzzle.name: measured.score}
    times_ms = segment_times(trained, served)
    for board, score in scores.items():
        stages.say(cost_sentence(board, score, times_ms[board]))


def segment_times(*boards: ServedGraph) -> dict[str, float]:
    """CPU time of a segment of one puzzle by board, in milliseconds on one thread."""
    engines: dict[str, Engine] = {}
    with ExitStack() as opened:
        for served in boards:
            on_cpu = replace(served, provider=CPU, num_threads=1)
            engine = opened.enter_context(on_cpu.engine(served.graph, num_slots=1))
            load_blanks(engine, served.puzzle_table[0])
            engines[served.puzzle.name] = engine
        return cpu_times.in_turns(engines, 1)


def cost_sentence(board: str, score: Score, time_ms: float) -> str:
    solved = f"{score.proven:.1%} of {score.num_puzzles} proven"
    return f"{board}: {solved} in {score.mean_segments:.1f} segments of {time_ms:.2f} ms"
