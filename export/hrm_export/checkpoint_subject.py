"""A checkpoint under evaluation. Only this part of hrm-eval needs PyTorch."""

from pathlib import Path

import torch

from hrm_export.inputs import checkpoint_of_run
from hrm_export.torch_engine import TorchEngine, torch_device
from hrm_model import checkpoint, geometry
from hrm_parity.accuracy import Subject
from hrm_puzzles import registry


def find_checkpoint(path: Path) -> Path | None:
    """The checkpoint of a path, of a run or of its file latest or best; None if there is none."""
    found = checkpoint.resolve(checkpoint_of_run(path) or path)
    if (found / checkpoint.CONFIG).is_file():
        return found
    return None


def open_checkpoint(
    path: Path,
    *,
    board: str | None,
    device: str,
    num_slots: int,
    num_threads: int | None,
    max_segments: int | None,
) -> Subject:
    model, meta = checkpoint.load(path)
    puzzle = registry.get(board or str(meta.get("puzzle")))
    model = geometry.on_board(model, puzzle)
    config = model.config
    if (config.seq_len, config.vocab_size) != (puzzle.seq_len, puzzle.vocab_size):
        sizes = f"{config.seq_len} positions of {config.vocab_size} tokens"
        raise ValueError(f"{path} has {sizes}, which does not fit {puzzle.name}; give its --board")
    if device not in ("auto", "cpu", "cuda"):
        problem = f"--engine {device} is for bundles"
        raise ValueError(f"{problem}; a checkpoint runs in PyTorch on cpu or cuda")
    found = torch_device(device, "--engine")
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    return Subject(
        name=str(path),
        precision=f"PyTorch on {found}",
        puzzle=puzzle,
        puzzle_table_PE=model.puzzle_table.float().numpy(),
        max_segments=max_segments or config.max_segments,
        engine=TorchEngine(model.to(found), num_slots),
    )
