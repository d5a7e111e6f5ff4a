"""What goes into a bundle; everything here is refused before anything long is computed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import torch

from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.batching.halting import HaltingPolicy, PolicyKind
from hrm_edge_runtime.engines.onnx import CPU, CUDA, OnnxEngine, Provider
from hrm_export.options import Options
from hrm_export.plan import LONG_S, plan_export
from hrm_export.segment import segment_graph
from hrm_export.torch_engine import torch_device
from hrm_host import atomic, board, progress
from hrm_model import checkpoint, geometry, hrm
from hrm_model.config import HRMConfig
from hrm_puzzles import registry
from hrm_puzzles.data.datasets import BLANK_IDENTIFIER, open_split
from hrm_puzzles.data.sources import Questions, find_questions
from hrm_puzzles.puzzle import NamedVariants, Puzzle

RUNS, BEST = Path("runs"), "best"
NUM_CALIBRATION = 8192
"""Puzzles reserved for calibration: at most four times those to measure on, and at least a quarter of a small set."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Contents:
    """All that goes into a bundle; `meta` is the checkpoint's, `identifiers` name the rows of the puzzle table,
    `tasks` show what is asked where it has a name.

    `calibration` and `held_out` share no puzzle. `trained` is the same model on the board it was trained on, where that
    is another, of generated puzzles. The threshold of `served.policy` is 0 unless the options give one.
    """

    name: str
    model: hrm.HRM
    served: ServedGraph
    calibration: Questions
    held_out: Questions
    identifiers: Sequence[str]
    tasks: Mapping[str, Any]
    meta: Mapping[str, Any]
    trained: ServedGraph | None = None

    @property
    def num_parameters(self) -> int:
        """Weights that the graph holds; the puzzle table is counted by its rows instead."""
        return sum(tensor.numel() for name, tensor in self.model.state_dict().items() if name != "puzzle_table")

    def engine(self, graph: Path, num_slots: int, *, want_logits: bool = False) -> OnnxEngine:
        return OnnxEngine(graph, num_slots=num_slots, provider=self.served.provider, want_logits=want_logits)

    def provenance(self) -> dict[str, str | int | float]:
        """The plain values of the checkpoint's `meta`, and versions; no path and no time of this machine."""
        known = {key: value for key, value in self.meta.items() if type(value) in (str, int, float)}
        plain = {key: value for key, value in known.items() if isinstance(value, str) or np.isfinite(value)}
        modules = (torch, onnx, onnxruntime)
        versions = {f"exported_with_{module.__name__}": str(module.__version__) for module in modules}
        return {**plain, "num_parameters": self.num_parameters, **versions}


def contents_of(options: Options, source: Path, out: Path, stages: progress.Stages) -> Contents:
    """Load, find or make all that goes from the checkpoint `source` to `out`; refuses what does not fit together."""
    atomic.require_free(out)
    source = checkpoint.resolve(source)
    own, meta = checkpoint.load(source)
    trained = puzzle = puzzle_of(own.config, meta.get("puzzle"), source)
    if options.board is not None:
        puzzle = other_board(options.board, trained, own.config, source)
    model = geometry.on_board(own, puzzle)
    config, policy = model.config, policy_of(options, model.config, puzzle)
    data = data_of(options.data, source, config, puzzle)
    identifiers = identifiers_of(data, config.num_puzzle_ids)
    provider = provider_of(options.device)
    served = served_graph(model, puzzle, policy, provider)
    plan = plan_export(served, options)
    if plan.estimate_s > LONG_S:
        stages.say(plan.sentence)
    options = replace(options, held_out=plan.num_held_out)
    calibration, held_out = find_puzzles(options, config, puzzle, data, stages)
    num_traced = min(policy.max_segments, config.max_segments)
    model.config = replace(config, max_segments=num_traced)
    return Contents(
        name=options.name or out.stem,
        model=model.to(provider.device or "cpu"),
        served=served,
        calibration=calibration,
        held_out=held_out,
        identifiers=identifiers,
        tasks={} if data is None else tasks_of(data, puzzle, identifiers),
        meta={"checkpoint": source.name, **meta, "puzzle": puzzle.name},
        trained=served_graph(own, trained, policy, provider) if options.board and trained.difficulties else None,
    )


def other_board(board: str, trained: Puzzle, config: HRMConfig, source: Path) -> Puzzle:
    """The puzzle of that size, or of that name; refuses weights that know one size only."""
    if config.blocks != "relational":
        raise ValueError(f"--board {board} asks for another size than {source} has; leave the option away")
    return registry.get(f"{trained.name.partition('-')[0]}-{board}" if board[:1].isdigit() else board)


def policy_of(options: Options, config: HRMConfig, puzzle: Puzzle) -> HaltingPolicy:
    """When the exported model stops, at threshold 0 unless the options give one."""
    limit = options.max_segments or config.max_segments
    if config.arch == "transformer" and limit > 1:
        raise ValueError(f"--max-segments {limit} asks a transformer to go on, which it cannot; leave the option away")
    kind = options.policy or ("verified" if puzzle.proof_exists else "learned")
    return HaltingPolicy(kind=cast("PolicyKind", kind), threshold=options.threshold or 0.0, max_segments=limit)


def provider_of(device: str) -> Provider:
    """Where graphs run for `--device`; `auto` is CUDA where both PyTorch and ONNX Runtime have it."""
    has_cuda = torch_device(device, "--device") == "cuda"
    return CUDA if has_cuda and (device == "cuda" or CUDA.name in onnxruntime.get_available_providers()) else CPU


def served_graph(model: hrm.HRM, puzzle: Puzzle, policy: HaltingPolicy, provider: Provider = CPU) -> ServedGraph:
    return ServedGraph(
        graph=segment_graph(model),
        puzzle=puzzle,
        puzzle_table=model.puzzle_table.float().numpy(),
        policy=policy,
        num_threads=board.num_cores(),
        provider=provider,
    )


def find_checkpoint(source: Path | None, calib: str | None) -> Path:
    """The checkpoint that is named, or the best of the run that is named like the calibration's puzzle."""
    if source is not None:
        if (source / BEST).exists() and not (source / "config.json").exists():
            raise ValueError(f"{source} is a run; give {source / BEST}, its best checkpoint")
        return source
    if calib is None:
        raise ValueError("no checkpoint is named; give CHECKPOINT, or --calib NAME to take runs/NAME/best")
    source = RUNS / Path(calib).name / BEST
    if not source.exists():
        remedy = f"train first: hrm-train --puzzle {calib}" if calib in registry.names() else "give CHECKPOINT"
        raise ValueError(f"{source}, which --calib {calib} stands for, is not there; {remedy}")
    return source


def bundle_name(source: Path) -> str:
    """The run's name where the checkpoint is one of its own, else the directory's."""
    in_run = source.is_file() or source.name.startswith("step_")
    return (source.resolve().parent if in_run else source).name


def puzzle_of(config: HRMConfig, name: object, source: Path) -> Puzzle:
    """The puzzle a checkpoint was trained on; refuses one of other sizes."""
    if not isinstance(name, str):
        raise ValueError(f"{source} does not say its puzzle ({name!r}); write it again with hrm-train or hrm-import")
    puzzle = registry.get(name)
    found, expected = (config.seq_len, config.vocab_size), (puzzle.seq_len, puzzle.vocab_size)
    if found != expected:
        raise ValueError(
            f"{source} has {found[0]} positions of {found[1]} tokens but {name} has {expected[0]} of {expected[1]}; "
            "export it with the version of the puzzle it was trained on"
        )
    return puzzle


def data_of(given: Path | None, source: Path, config: HRMConfig, puzzle: Puzzle) -> Path | None:
    """The one given, or, where its tasks are part of the model, the one that the run says it had."""
    if given is not None or config.num_puzzle_ids == 1:
        return given
    run = source.parent / "run.json"
    stated = json.loads(run.read_text(encoding="utf-8")).get("data") if run.is_file() else None
    if isinstance(stated, str) and Path(stated).is_dir():
        return Path(stated)
    raise ValueError(
        f"the puzzle table has {config.num_puzzle_ids} rows whose names only the data set of its training knows; give "
        f"that with --data (made by hrm-data build {puzzle.name} --out data/{puzzle.name}, or by the published builder)"
    )


def identifiers_of(data: Path | None, num_puzzle_ids: int) -> list[str]:
    names = [BLANK_IDENTIFIER] if data is None else json.loads((data / "identifiers.json").read_text(encoding="utf-8"))
    if len(names) != num_puzzle_ids:
        raise ValueError(f"{data} names {len(names)} puzzles but the table has {num_puzzle_ids} rows; give its own one")
    return names


def tasks_of(data: Path, puzzle: Puzzle, identifiers: Sequence[str]) -> dict[str, Any]:
    """The pairs of each task as it is, none of its variants: those of the training split, and those held out."""
    if not isinstance(puzzle, NamedVariants):
        return {}
    named = {row: name for row, name in enumerate(identifiers) if row and puzzle.variant_of(name)[0] == name}
    tasks: dict[str, Any] = {name: {"train": [], "test": []} for name in named.values()}
    for split_name in ("train", "test"):
        split = open_split(data, split_name)
        rows = np.flatnonzero(np.isin(split.puzzle_ids_N, list(named)))
        for row, *pair_2T in zip(rows.tolist(), split.inputs(rows), split.labels(rows), strict=True):
            question, answer = (puzzle.decode(tokens_T).tolist() for tokens_T in pair_2T)
            tasks[named[int(split.puzzle_ids_N[row])]][split_name].append({"input": question, "output": answer})
    return tasks


def find_puzzles(
    options: Options, config: HRMConfig, puzzle: Puzzle, data: Path | None, stages: progress.Stages
) -> tuple[Questions, Questions]:
    """Puzzles to calibrate with, and others to measure on; fresh ones where no data set or file is named."""
    reserved = min(NUM_CALIBRATION, 4 * options.held_out) if options.fp16 or options.int8 else 0
    questions = find_questions(
        options.calib or (str(data) if data else puzzle.name),
        puzzle,
        count=options.held_out + reserved,
        data=data,
        num_workers=board.num_cores(),
        progress=partial(stages.show, "making puzzles"),
    )
    questions.require_ids(config.num_puzzle_ids)
    order_N = np.random.default_rng(0).permutation(len(questions))
    first = min(reserved, max(len(questions) - options.held_out, len(questions) // 4))
    return questions.at(order_N[:first]), questions.at(order_N[first:])
