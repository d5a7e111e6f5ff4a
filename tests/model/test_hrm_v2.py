"""Files of HRM-v2's training scripts (Hrishnugg/HRM at d41462e), from the file to the answer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_tools import made_questions
from published_tools import SEGMENTS, WIDTH, architecture, published_state, tensors_of
from service_tools import Server, command
from torch import Tensor, nn
from typer.testing import CliRunner

from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.factory import choose
from hrm_edge_runtime.solve.solvers import from_bundle
from hrm_export.cli import main as export_main
from hrm_export.eval_cli import main as eval_main
from hrm_model import checkpoint
from hrm_model.checkpoint import CheckpointError
from hrm_model.import_cli import main as import_main
from hrm_model.published import model_from_published
from hrm_puzzles import registry
from hrm_puzzles.data import datasets

NUM_ROWS = 1000  # rows of the Sudoku script's table. Its data set names one puzzle
FEW = ("--golden", "2", "--held-out", "8")


def model_config(puzzle: str, *, num_puzzle_ids: int, puzzle_emb_ndim: int) -> dict[str, Any]:
    kind = registry.get(puzzle)
    settings = architecture("rope", (2, 2))
    del settings["name"], settings["loss"]
    settings["seq_len"] = kind.seq_len
    settings["vocab_size"] = kind.vocab_size
    settings["num_puzzle_identifiers"] = num_puzzle_ids
    settings["puzzle_emb_ndim"] = puzzle_emb_ndim
    return settings


def state_of(config: dict[str, Any]) -> dict[str, Tensor]:
    shape = (config["num_puzzle_identifiers"], config["puzzle_emb_ndim"])
    state = tensors_of(published_state(vocab=config["vocab_size"], table=shape))
    for name in ("inner.H_init", "inner.L_init"):
        state[name] = state[name].bfloat16()
    return state


def optimizer_state(state: dict[str, Tensor]) -> dict[str, Any]:
    """AdamW's state after a step, as the maze script stores it."""
    parameters = [nn.Parameter(tensor) for name, tensor in state.items() if "_init" not in name]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


def write_maze(file: Path, **changes: Any) -> Path:
    """`checkpoint_final.pt` of the maze script: no puzzle table, and the optimizer's state."""
    config = model_config("maze-8x8", num_puzzle_ids=1, puzzle_emb_ndim=0) | changes
    state = state_of(config)
    content = {
        "model_config": config,
        "model_state_dict": state,
        "optimizer_state_dict": optimizer_state(dict(state)),
        "step": 3200,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, file)
    return file


def write_sudoku(file: Path) -> Path:
    """`hrm_sudoku_final.pt`: a table of 1,000 rows, whatever the data set names."""
    config = model_config("sudoku-4x4", num_puzzle_ids=NUM_ROWS, puzzle_emb_ndim=WIDTH)
    content = {"model_config": config, "model_state_dict": state_of(config), "step": 100}
    torch.save(content, file)
    return file


def ran(app: Any, *arguments: object) -> str:
    ended = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def questions_of(bundle: Bundle) -> list[object]:
    puzzle = bundle.puzzle
    tokens_NT = made_questions(puzzle, 3).tokens_NT
    return [puzzle.asked(puzzle.decode(tokens_T), "<blank>") for tokens_T in tokens_NT]


def names_of(bundle: Bundle) -> list[str]:
    return [bundle.identifiers[row] for row in range(len(bundle.identifiers))]


@pytest.mark.process
def test_the_maze_script_s_checkpoint_goes_from_the_file_to_an_answer(tmp_path: Path) -> None:
    source = write_maze(tmp_path / "checkpoints" / "maze" / "checkpoint_final.pt")
    imported = tmp_path / "imported"
    said = ran(import_main, source, "--puzzle", "maze-8x8", "--out", imported)
    assert f"hrm-export {imported}'" in said
    judged = ran(eval_main, imported, "--data", "maze-8x8", "--puzzles", "4", "--json")
    assert json.loads(judged)["model"] == str(imported)
    out = tmp_path / "maze.bundle"
    ran(export_main, imported, "--out", out, *FEW)
    (question, *_) = questions_of(Bundle.open(out))
    with Server(command("serve", out, "--engine", "cpu")) as server:
        server.wait_until_ready()
        reply = server.solve(question)
    assert reply.status_code == 200, reply.text
    assert 1 <= reply.json()["segments"] <= SEGMENTS


def test_a_run_s_directory_is_imported_by_its_final_checkpoint(tmp_path: Path) -> None:
    write_maze(tmp_path / "checkpoint_step_2000.pt")
    write_maze(tmp_path / "checkpoint_final.pt")
    model = model_from_published(tmp_path, 64)
    assert model.puzzle_table.shape == (1, 0)
    assert model.config.num_positions == 64


def test_settings_that_the_file_lacks_take_the_defaults_of_its_repository(tmp_path: Path) -> None:
    file = write_maze(tmp_path / "checkpoint_final.pt")
    content = torch.load(file, weights_only=True)
    for name in ("expansion", "pos_encodings", "puzzle_emb_ndim"):
        del content["model_config"][name]
    torch.save(content, file)
    config = model_from_published(file, 64).config
    assert (config.expansion, config.positions, config.puzzle_vector_size) == (4.0, "rope", 0)


@pytest.mark.parametrize(
    ("ndim", "reason"),
    [
        (WIDTH, r"puzzle_table: expected \(1, 32\), found None"),
        (-1, "puzzle_vector_size is -1"),
        (0.0, "misstates 'float' object"),
    ],
)
def test_a_table_that_the_settings_name_must_be_in_the_file(
    tmp_path: Path, ndim: object, reason: str
) -> None:
    file = write_maze(tmp_path / "checkpoint_final.pt")
    content = torch.load(file, weights_only=True)
    content["model_config"]["puzzle_emb_ndim"] = ndim
    torch.save(content, file)
    with pytest.raises(CheckpointError, match=reason):
        model_from_published(file, 64)


def sudoku_data(path: Path, *, num_names: int) -> Path:
    """A data set of the published layout that names so many puzzles, "<blank>" included."""
    kind = registry.get("sudoku-4x4")
    asked = made_questions(kind, 16)
    datasets.write_split(path, "test", asked.tokens_NT, asked.labels_NT, puzzle=kind)
    names = [f"sudoku-{number}" for number in range(1, num_names)]
    datasets.write_identifiers(path, names)
    return path


@pytest.fixture(scope="module")
def imported_sudoku(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sudoku")
    source = write_sudoku(folder / "hrm_sudoku_final.pt")
    said = ran(import_main, source, "--puzzle", "sudoku-4x4", "--out", folder / "imported")
    assert f"hrm-export {folder / 'imported'} --puzzle-ids 1" in said
    return folder / "imported"


def test_a_table_of_many_rows_exports_as_the_import_advises(
    imported_sudoku: Path, tmp_path: Path
) -> None:
    out = tmp_path / "sudoku.bundle"
    ran(export_main, imported_sudoku, "--puzzle-ids", 1, "--out", out, *FEW)
    bundle = Bundle.open(out)
    model, _ = checkpoint.load(imported_sudoku)
    assert model.config.num_puzzle_ids == NUM_ROWS
    assert names_of(bundle) == ["<blank>"]
    assert np.array_equal(bundle.puzzle_table, model.puzzle_table[:1].numpy())
    requests = [SolveRequest(puzzle=question) for question in questions_of(bundle)]
    solver = from_bundle(bundle, choose(bundle, "cpu", num_slots=2), num_slots=2)
    replies = [reply for _, reply in solver.solve_all(requests)]
    assert all(isinstance(reply, SolveAnswer) for reply in replies)


def test_rows_take_the_names_of_the_data_set_or_numbers(
    imported_sudoku: Path, tmp_path: Path
) -> None:
    data = sudoku_data(tmp_path / "data", num_names=NUM_ROWS)
    ran(export_main, imported_sudoku, "--data", data, "--out", tmp_path / "named", *FEW)
    ran(export_main, imported_sudoku, "--puzzle-ids", 3, "--out", tmp_path / "numbered", *FEW)
    named = Bundle.open(tmp_path / "named")
    assert len(named.identifiers) == NUM_ROWS
    assert named.identifiers[7] == "sudoku-7"
    assert names_of(Bundle.open(tmp_path / "numbered")) == ["<blank>", "1", "2"]


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        ((), "keep rows without names with --puzzle-ids"),
        (("--data", "data"), "or keep 1 rows with --puzzle-ids 1"),
        (("--puzzle-ids", "1001"), "has 1000 rows; give at most 1000"),
    ],
)
def test_rows_that_nobody_names_are_rejected_with_the_remedy(
    imported_sudoku: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    saying: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    sudoku_data(tmp_path / "data", num_names=1)
    ended = CliRunner().invoke(export_main, [str(imported_sudoku), *options, *FEW])
    assert ended.exit_code == 2, ended.output
    assert saying in ended.stderr
