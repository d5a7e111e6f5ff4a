"""A bundle opens only if everything in it is as its manifest says; each error names the fault."""

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import set_external_data

from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import PUZZLE_TABLE_NAME, Bundle, Identifiers
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.manifest import BundleError, read_manifest, write_manifest
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_host.text import is_printable, printable

Fields = dict[str, Any]


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the tiny bundle, to be spoilt."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "spoilt.bundle"))


def edit(bundle: Path, change: Callable[[Fields], object]) -> None:
    """Change the manifest as a stranger would, by hand."""
    fields = json.loads((bundle / "manifest.json").read_text())
    change(fields)
    (bundle / "manifest.json").write_text(json.dumps(fields))


def rewrite(bundle: Path, **changes: object) -> None:
    """Change the manifest and let it match the files again."""
    fields = read_manifest(bundle).model_dump(exclude={"files"})
    write_manifest(bundle, **{**fields, **changes})


def refused(bundle: Path, saying: str) -> None:
    with pytest.raises(BundleError, match=saying) as refusal:
        Bundle.open(bundle)
    text = str(refusal.value)
    assert text.endswith(".")
    assert "\n" not in text


def test_a_whole_bundle_opens_and_its_graph_runs(tiny_bundle: Path) -> None:
    opened = Bundle.open(tiny_bundle)
    assert opened.puzzle.name == "sudoku-4x4"
    assert opened.puzzle_table.shape == (3, 8)
    assert isinstance(opened.puzzle_table, np.memmap)
    assert [opened.identifiers[row] for row in range(3)] == ["<blank>", "task-1", "task-2"]
    policy = HaltingPolicy(kind="verified", threshold=0.0, max_segments=6)
    assert opened.manifest.halting_policy() == policy
    assert opened.golden().logits_SBTV.shape == (6, 5, 16, 6)
    engine = engine_from_bundle(opened, num_slots=1, num_threads=1)
    engine.load(0, opened.golden().tokens_BT[0], opened.puzzle_table[0])
    assert engine.step(1).answer_BT.shape == (1, 16)


def test_a_directory_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nothing.bundle", "not a bundle directory")
    refused(tmp_path, "manifest.json is missing")


@pytest.mark.parametrize(
    ("content", "saying"),
    [
        (b"{", "JSON object|not JSON"),
        (b"[1, 2]", "does not hold a JSON object"),
        (b"[" * 100_000, "JSON object|not JSON"),
        (b"\xff\xfe\xfa", "not JSON"),
        (b" " * (1 << 20) + b"{}", "larger than"),
    ],
    ids=["cut off", "list", "deep", "no text", "huge"],
)
def test_a_manifest_that_is_no_json_object_of_reasonable_size_is_refused(
    bundle: Path, content: bytes, saying: str
) -> None:
    (bundle / "manifest.json").write_bytes(content)
    refused(bundle, saying)


LEADING_OUT = ("../step.onnx", "/etc/passwd", "a/b.onnx", ".hidden", "a\\b", "C:x", "x\n", "")


def curve(threshold: float) -> Fields:
    point = {"threshold": threshold, "exact": 0.5, "proven": 0.5, "mean_segments": 2.0}
    return {"num_puzzles": 100, "threshold": threshold, "points": [point]}


def halting_at(threshold: object) -> Fields:
    return {"halting": {"policy": "learned", "threshold": threshold}}


@pytest.mark.parametrize(
    ("changes", "saying"),
    [
        ({"format_version": 1}, "format version 1"),
        ({"format_version": "2"}, "format version '2'"),
        ({"run_this": "rm -r"}, "'run_this'"),
        (halting_at(float("nan")), r"halting\.threshold"),
        (halting_at("high"), r"halting\.threshold"),
        ({"files": {"../other": {"sha256": "0" * 64, "size_bytes": 1}}}, "not a plain file name"),
        ({"curves": {"int8": curve(0.0)}}, r"curves names \['int8'\], but the precisions are"),
        ({"curves": {"fp32": {**curve(0.0), "points": []}}}, "curves.fp32.points"),
        ({"curves": {"fp32": {**curve(0.0), "num_puzzles": 0}}}, "curves.fp32.num_puzzles"),
        *[({"precisions": {"fp32": name}}, "not a plain file name") for name in LEADING_OUT],
    ],
)
def test_a_field_that_is_unknown_or_wrong_is_refused(
    bundle: Path, changes: Fields, saying: str
) -> None:
    edit(bundle, lambda fields: fields.update(changes))
    refused(bundle, saying)


EVIL = "\x1b[31mred, two\nlines, c1\x9b, turned\u202e, isolated\u2066\u200f, separated\u2028\x7f"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": EVIL},
        {"puzzle": EVIL},
        {"precisions": {EVIL: "step.fp32.onnx"}},
        {"provenance": {"solved": EVIL}},
        {"provenance": {EVIL: 1}},
    ],
    ids=["name", "puzzle", "precision", "provenance", "key"],
)
def test_a_text_that_commands_a_terminal_is_refused_and_shown_escaped(
    bundle: Path, changes: Fields
) -> None:
    edit(bundle, lambda fields: fields.update(changes))
    refused_escaped(bundle)


def test_the_name_of_a_task_that_commands_a_terminal_is_refused(bundle: Path) -> None:
    (bundle / "identifiers.json").write_text(json.dumps(["<blank>", "task-1", EVIL]))
    rewrite(bundle)
    refused_escaped(bundle)


def refused_escaped(bundle: Path) -> None:
    with pytest.raises(BundleError, match="holds control or direction characters") as refusal:
        Bundle.open(bundle)
    assert is_printable(str(refusal.value))
    assert printable(EVIL) in str(refusal.value)


def test_a_missing_key_is_refused(bundle: Path) -> None:
    edit(bundle, lambda fields: fields.pop("hidden_size"))
    refused(bundle, "'hidden_size'")


def test_a_file_that_is_missing_or_changed_is_refused(bundle: Path) -> None:
    content = bytearray((bundle / "step.fp32.onnx").read_bytes())
    content[100] ^= 1
    (bundle / "step.fp32.onnx").write_bytes(content)
    refused(bundle, "SHA-256")
    with (bundle / "step.fp32.onnx").open("ab") as stream:
        stream.write(b"!")
    refused(bundle, "step.fp32.onnx has .* bytes instead of")
    (bundle / "step.fp32.onnx").unlink()
    refused(bundle, "step.fp32.onnx is missing")


@pytest.mark.parametrize("location", ["../secret.bin", "beside.bin"])
def test_a_graph_with_weights_in_another_file_is_refused(bundle: Path, location: str) -> None:
    model = onnx.load(bundle / "step.fp32.onnx")
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "head_DV")
    set_external_data(weights, location)
    weights.ClearField("raw_data")
    (bundle / "step.fp32.onnx").write_bytes(model.SerializeToString())
    rewrite(bundle)
    refused(bundle, "keeps weights in another file")


@pytest.mark.parametrize("name", ["step.fp32.onnx", "manifest.json"])
def test_a_link_is_refused_even_to_the_right_content(
    bundle: Path, tmp_path: Path, name: str
) -> None:
    (bundle / name).rename(tmp_path / name)
    os.symlink(tmp_path / name, bundle / name)
    refused(bundle, "plain file")


@pytest.mark.parametrize(
    ("changes", "saying"),
    [
        ({"puzzle": "chess"}, "chess"),
        ({"puzzle": "sudoku"}, "16 tokens of 6 kinds, but the puzzle 'sudoku' has 81 of 11"),
        ({"num_puzzle_ids": 4}, r"\(3, 8\) instead of float32 \(4, 8\)"),
    ],
    ids=["puzzle not installed", "another puzzle", "another table"],
)
def test_sizes_that_do_not_fit_are_refused(bundle: Path, changes: Fields, saying: str) -> None:
    rewrite(bundle, **changes)
    refused(bundle, saying)


def test_sizes_that_disagree_with_the_graph_are_refused(bundle: Path) -> None:
    rewrite(bundle, hidden_size=12)
    with pytest.raises(BundleError, match="hidden_size 8, but the manifest says 12"):
        engine_from_bundle(Bundle.open(bundle), num_slots=1)


def test_a_table_that_would_run_code_is_refused(bundle: Path) -> None:
    (bundle / "puzzle_table.npy").write_bytes(pickle.dumps(np.zeros(3)))
    rewrite(bundle)
    refused(bundle, "is not an array")


def with_graphs(bundle: Path, **graphs: str) -> None:
    """Write the step graph again under other names, as the manifest's field -> file."""
    for name in graphs.values():
        shutil.copy(bundle / "step.fp32.onnx", bundle / name)
    rewrite(bundle, **{field: {"fp32": name} for field, name in graphs.items()})


def test_a_cpu_takes_the_form_made_for_it_and_any_other_device_the_portable_one(
    bundle: Path,
) -> None:
    opened = Bundle.open(bundle)
    assert opened.graph_path("fp32", device="cpu").name == "step.fp32.onnx"  # there is no other
    with_graphs(bundle, cpu_graphs="step.fp32.cpu.onnx")
    opened = Bundle.open(bundle)
    assert opened.graph_path("fp32", device="cpu").name == "step.fp32.cpu.onnx"
    assert opened.graph_path("fp32").name == "step.fp32.onnx"


@pytest.mark.parametrize("name", ["step.fp32.onnx", "cpu.onnx", "unrolled.onnx", PUZZLE_TABLE_NAME])
def test_a_file_the_manifest_does_not_list_is_refused(bundle: Path, name: str) -> None:
    with_graphs(bundle, cpu_graphs="cpu.onnx", unrolled="unrolled.onnx")
    edit(bundle, lambda fields: fields["files"].pop(name))
    refused(bundle, f"does not list {name}")


def test_each_precision_halts_at_the_threshold_chosen_for_it_and_shows_it(bundle: Path) -> None:
    shutil.copy(bundle / "step.fp32.onnx", bundle / "step.int8.onnx")
    precisions = {"fp32": "step.fp32.onnx", "int8": "step.int8.onnx"}
    halting = {"policy": "learned", "threshold": 0.25}
    rewrite(bundle, precisions=precisions, curves={"int8": curve(1.5)}, halting=halting)
    manifest = read_manifest(bundle)
    own = HaltingPolicy(kind="learned", threshold=1.5, max_segments=6)
    assert manifest.halting_policy("int8") == own
    assert manifest.halting_policy().threshold == 0.25
    served = ServedModel.of(Bundle.open(bundle), precision="int8", num_slots=1, max_attempts=1)
    assert served.view().halting.threshold == 1.5


def test_golden_traces_that_are_missing_or_do_not_fit_are_refused(bundle: Path) -> None:
    rewrite(bundle, max_segments=5)
    with pytest.raises(BundleError, match="they cover 6 segments instead of 1 to 5"):
        Bundle.open(bundle).golden()
    (bundle / "golden.npz").write_bytes(b"PK no zip")
    rewrite(bundle)
    for read in (Bundle.golden, Bundle.golden_example):
        with pytest.raises(BundleError, match="cannot be read"):
            read(Bundle.open(bundle))
    (bundle / "golden.npz").unlink()
    rewrite(bundle)
    with pytest.raises(BundleError, match="holds no golden"):
        Bundle.open(bundle).golden()
    assert Bundle.open(bundle).golden_example() is None


def test_a_manifest_that_would_be_refused_is_not_written(bundle: Path) -> None:
    before = (bundle / "manifest.json").read_bytes()
    with pytest.raises(BundleError, match="max_segments"):
        rewrite(bundle, max_segments=0)
    assert (bundle / "manifest.json").read_bytes() == before
    assert not list(bundle.glob("*.tmp"))


@pytest.mark.parametrize(
    "names", ["[" * 100_000, "{}", '["<blank>", "task-1"]', '["a", "a", "b"]', '["a", "b", 3]']
)
def test_names_that_do_not_fit_the_table_are_refused(bundle: Path, names: str) -> None:
    (bundle / "identifiers.json").write_text(names)
    rewrite(bundle)
    refused(bundle, "identifiers.json is no")


@pytest.mark.parametrize("says", [(1 << 40,), (1 << 20,)])
def test_golden_arrays_that_say_or_unpack_to_too_much_are_refused_before_anything_is_unpacked(
    bundle: Path, says: tuple[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hrm_edge_runtime.contract.bundle.MAX_ARRAY_BYTES", 1 << 20)
    header = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": says}
    np.lib.format.write_array_header_1_0(header, fields)
    with zipfile.ZipFile(bundle / "golden.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tokens_BT.npy", header.getvalue() + b"\0" * (4 << 20))
    rewrite(bundle)
    with pytest.raises(BundleError, match=r"states .* bytes"):
        Bundle.open(bundle).golden()


def test_a_row_is_found_by_its_name_and_all_rows_whose_names_begin_alike() -> None:
    names = ["<blank>", "ab", "ä_1", "ab_2", "abc", "a", "ab_1"]
    found = Identifiers(names)
    assert [found.row_of(name) for name in names] == list(range(7))
    for unknown in ("", "b", "ab_", "ab_11", "ab\0", "z" * 300):
        assert found.row_of(unknown) is None
    beginning = {"ab": [1, 3, 4, 6], "ab_2": [3], "ab_22": [], "ä": [2]}
    for start, rows in beginning.items():
        assert found.rows_beginning(start) == rows
    assert not Identifiers(["a", "b", "a"]).are_different


def test_the_tasks_of_a_bundle_are_those_of_its_names_where_no_file_states_them() -> None:
    bundle = Bundle.open(find_bundle("arc-7x7"))
    files = {name: entry for name, entry in bundle.manifest.files.items() if name != "tasks.json"}
    older = replace(bundle, manifest=bundle.manifest.model_copy(update={"files": files}))
    assert sorted(older.tasks()) == sorted(bundle.tasks())
    assert len(bundle.tasks()) == 76
    assert older.example() == older.golden_example()


@pytest.fixture
def arc(tmp_path: Path) -> Path:
    """A copy of the smallest ARC bundle."""
    return Path(shutil.copytree(find_bundle("arc-7x7"), tmp_path / "arc.bundle"))


def test_a_bundle_begins_with_the_tasks_that_its_model_answers_right(arc: Path) -> None:
    bundle = Bundle.open(arc)
    results = bundle.manifest.held_out_tasks
    assert results is not None
    assert bundle.tasks()[: len(results.right)] == results.right
    name = results.right[0]
    pair = json.loads((arc / "tasks.json").read_text())[name]["test"][0]
    question = {"task": name, "input": pair["input"]}
    answer = {"task": name, "input": pair["output"]}
    assert bundle.example() == (question, answer)
    edit(arc, lambda fields: fields.pop("held_out_tasks"))
    without_results = Bundle.open(arc)
    assert without_results.example() == without_results.golden_example()


@pytest.mark.parametrize(
    ("results", "problem"),
    [
        ({"attempts": 16, "num_tasks": 1, "right": ["a", "b"]}, "right names 2 of 1 tasks"),
        ({"attempts": 16, "num_tasks": 9, "right": ["a", "a"]}, "right names a task twice"),
        ({"attempts": 0, "num_tasks": 9, "right": []}, "held_out_tasks.attempts"),
        ({"attempts": 1, "num_tasks": 9, "right": ["\u202e"]}, "control or direction"),
    ],
)
def test_task_results_that_cannot_be_are_rejected(arc: Path, results: Fields, problem: str) -> None:
    edit(arc, lambda fields: fields.update(held_out_tasks=results))
    refused(arc, problem)


@pytest.mark.parametrize("tests", [[], [{"input": [[1]]}], [{"input": [[1]], "output": "x"}], 5])
def test_a_right_task_without_its_held_out_pair_is_rejected_when_it_is_shown(
    arc: Path, tests: object
) -> None:
    tasks = json.loads((arc / "tasks.json").read_text())
    first = next(iter(tasks))
    tasks[first]["test"] = tests
    (arc / "tasks.json").write_text(json.dumps(tasks))
    rewrite(arc)
    with pytest.raises(BundleError, match=f"lacks a held-out pair of the task '{first}'"):
        Bundle.open(arc).example()
