"""A bundle opens only if everything in it is as its manifest says; each error names the fault."""

import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from bundle_tools import restate, shipped, with_manifest
from files import edited
from onnx.external_data_helper import set_external_data

from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import PUZZLE_TABLE_NAME, Bundle, Identifiers
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.manifest import BundleError, read_manifest
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.onnx import OnnxEngine, engine_from_bundle
from hrm_host.reading import is_printable, printable

Fields = dict[str, Any]
Change = Callable[[Path], object]


def refused(bundle: Path, saying: str) -> None:
    with pytest.raises(BundleError, match=saying) as refusal:
        Bundle.open(bundle)
    text = str(refusal.value)
    assert text.endswith(".")
    assert "\n" not in text


def test_a_whole_bundle_opens_and_its_graph_runs(tiny_bundle: Path):
    opened = Bundle.open(tiny_bundle)
    assert opened.puzzle_table.shape == (3, 8)
    assert isinstance(opened.puzzle_table, np.memmap)
    assert list(opened.identifiers) == ["<blank>", "task-1", "task-2"]
    assert opened.golden().logits_SBTV.shape == (6, 5, 16, 6)
    engine = engine_from_bundle(opened, num_slots=1, num_threads=1)
    engine.load(0, opened.golden().tokens_BT[0], opened.puzzle_table[0])
    assert engine.step(1).answer_BT.shape == (1, 16)


LEADING_OUT = ("../step.onnx", "/etc/passwd", "a/b.onnx", ".hidden", "a\\b", "C:x", "x\n", "")
NO_JSON = "JSON object|read as JSON"


def curve(threshold: float, **changes: object) -> Fields:
    point = {"threshold": threshold, "exact": 0.5, "proven": 0.5, "mean_segments": 2.0}
    return {"num_puzzles": 100, "threshold": threshold, "points": [point], **changes}


def holding(content: bytes, name: str = "manifest.json") -> Change:
    """Another content in a file, which the manifest lists unless it is the manifest itself."""

    def change(bundle: Path) -> None:
        (bundle / name).write_bytes(content)
        if name != "manifest.json":
            restate(bundle)

    return change


def stating(**fields: object) -> Change:
    """Change the manifest as a stranger would, by hand; None removes a field."""

    def change(bundle: Path) -> None:
        with edited(bundle / "manifest.json") as stated:
            for name, value in fields.items():
                stated[name] = value
                if value is None:
                    del stated[name]

    return change


def rewritten(**fields: object) -> Change:
    return lambda bundle: restate(bundle, **fields)


def with_weights_elsewhere(bundle: Path) -> None:
    model = onnx.load(bundle / "step.fp32.onnx")
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "head_DV")
    set_external_data(weights, "../secret.bin")
    weights.ClearField("raw_data")
    holding(model.SerializeToString(), "step.fp32.onnx")(bundle)


def linked(name: str) -> Change:
    def change(bundle: Path) -> None:
        (bundle / name).rename(bundle.parent / name)
        os.symlink(bundle.parent / name, bundle / name)

    return change


def unlisted(name: str) -> Change:
    def change(bundle: Path) -> None:
        with_graphs(bundle, cpu_graphs="cpu.onnx", unrolled="unrolled.onnx")
        with edited(bundle / "manifest.json") as fields:
            del fields["files"][name]

    return change


OUTSIDE = {"../other": {"sha256": "0" * 64, "size_bytes": 1}}
FAULTS = {
    "no directory": (shutil.rmtree, "not a bundle directory"),
    "no manifest": (lambda bundle: (bundle / "manifest.json").unlink(), "manifest.json is missing"),
    "cut off": (holding(b"{"), NO_JSON),
    "list": (holding(b"[1, 2]"), "does not hold a JSON object"),
    "deep": (holding(b"[" * 100_000), NO_JSON),
    "no text": (holding(b"\xff\xfe\xfa"), NO_JSON),
    "huge": (holding(b" " * (1 << 20) + b"{}"), "more than 1048576 bytes"),
    "format": (stating(format_version=1), "format version 1"),
    "unknown field": (stating(run_this="rm -r"), "'run_this'"),
    "missing field": (stating(hidden_size=None), "'hidden_size'"),
    "no number": (
        stating(halting={"policy": "learned", "threshold": float("nan")}),
        r"halting\.threshold",
    ),
    "file outside": (stating(files=OUTSIDE), "not a plain file name"),
    "curve of nothing": (
        stating(curves={"int8": curve(0.0)}),
        r"curves names \['int8'\], but the precisions are",
    ),
    "empty curve": (stating(curves={"fp32": curve(0.0, points=[])}), "curves.fp32.points"),
    "weights elsewhere": (with_weights_elsewhere, "keeps weights in another file"),
    "linked graph": (linked("step.fp32.onnx"), "plain file"),
    "linked manifest": (linked("manifest.json"), "plain file"),
    "puzzle not installed": (rewritten(puzzle="chess"), "chess"),
    "another puzzle": (
        rewritten(puzzle="sudoku"),
        "16 tokens of 6 kinds, but the puzzle 'sudoku' has 81 of 11",
    ),
    "another table": (rewritten(num_puzzle_ids=4), r"\(3, 8\) instead of float32 \(4, 8\)"),
    "pickled table": (
        holding(pickle.dumps(np.zeros(3)), "puzzle_table.npy"),
        "is not an array",
    ),
}
for name in LEADING_OUT:
    FAULTS[f"graph {name!r}"] = (stating(precisions={"fp32": name}), "not a plain file name")
for name in ("step.fp32.onnx", "cpu.onnx", "unrolled.onnx", PUZZLE_TABLE_NAME):
    FAULTS[f"{name} unlisted"] = (unlisted(name), f"does not list {name}")
for names in ("[" * 100_000, "{}", '["<blank>", "task-1"]', '["a", "a", "b"]', '["a", "b", 3]'):
    identifiers = holding(names.encode(), "identifiers.json")
    FAULTS[f"names {names[:30]}"] = (identifiers, "identifiers.json is no")


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_refused_in_one_sentence(copied: Path, name: str):
    change, saying = FAULTS[name]
    change(copied)
    refused(copied, saying)


EVIL = "\x1b[31mred, two\nlines, c1\x9b, turned\u202e, isolated\u2066\u200f, separated\u2028\x7f"


EVIL_FIELDS = [
    {"name": EVIL},
    {"precisions": {EVIL: "step.fp32.onnx"}},
    {"provenance": {"solved": EVIL}},
    {"provenance": {EVIL: 1}},
]
EVIL_NAMES = json.dumps(["<blank>", "task-1", EVIL]).encode()


@pytest.mark.parametrize(
    "change",
    [holding(EVIL_NAMES, "identifiers.json"), *(stating(**fields) for fields in EVIL_FIELDS)],
    ids=["task", "name", "precision", "provenance", "key"],
)
def test_a_text_that_commands_a_terminal_is_rejected(copied: Path, change: Change):
    change(copied)
    with pytest.raises(BundleError, match="holds control or direction characters") as refusal:
        Bundle.open(copied)
    assert is_printable(str(refusal.value))
    assert printable(EVIL) in str(refusal.value)


def test_a_file_that_is_missing_or_changed_is_refused(copied: Path):
    content = bytearray((copied / "step.fp32.onnx").read_bytes())
    content[100] ^= 1
    (copied / "step.fp32.onnx").write_bytes(content)
    refused(copied, "SHA-256")
    with (copied / "step.fp32.onnx").open("ab") as stream:
        stream.write(b"!")
    refused(copied, "step.fp32.onnx has .* bytes instead of")
    (copied / "step.fp32.onnx").unlink()
    refused(copied, "step.fp32.onnx is missing")


def test_sizes_that_disagree_with_the_graph_are_refused(copied: Path):
    restate(copied, hidden_size=12)
    with pytest.raises(BundleError, match="hidden_size 8, but the manifest says 12"):
        engine_from_bundle(Bundle.open(copied), num_slots=1)
    graph = onnx.load(shipped("sudoku-6x6").graph_path("fp32"))
    (tokens,) = [node for node in graph.graph.input if node.name == "tokens_BT"]
    tokens.type.tensor_type.shape.dim[1].dim_value = 35
    onnx.save(graph, copied / "graph.onnx")
    with pytest.raises(BundleError, match="has seq_len 35, but 36 in answer_BT"):
        OnnxEngine(copied / "graph.onnx", num_slots=1)


def with_graphs(bundle: Path, **graphs: str) -> None:
    """Write the step graph again under other names, as the manifest's field -> file."""
    for name in graphs.values():
        shutil.copy(bundle / "step.fp32.onnx", bundle / name)
    restate(bundle, **{field: {"fp32": name} for field, name in graphs.items()})


def test_a_cpu_takes_its_form_and_other_devices_the_portable_one(copied: Path):
    opened = Bundle.open(copied)
    assert opened.graph_path("fp32", device="cpu").name == "step.fp32.onnx"  # there is no other
    with_graphs(copied, cpu_graphs="step.fp32.cpu.onnx")
    opened = Bundle.open(copied)
    assert opened.graph_path("fp32", device="cpu").name == "step.fp32.cpu.onnx"
    assert opened.graph_path("fp32").name == "step.fp32.onnx"


def test_each_precision_halts_at_the_threshold_chosen_for_it_and_shows_it(copied: Path):
    shutil.copy(copied / "step.fp32.onnx", copied / "step.int8.onnx")
    precisions = {"fp32": "step.fp32.onnx", "int8": "step.int8.onnx"}
    halting = {"policy": "learned", "threshold": 0.25}
    restate(copied, precisions=precisions, curves={"int8": curve(1.5)}, halting=halting)
    manifest = read_manifest(copied)
    own = HaltingPolicy(kind="learned", threshold=1.5, max_segments=6)
    assert manifest.halting_policy("int8") == own
    assert manifest.halting_policy().threshold == 0.25
    served = ServedModel.of(Bundle.open(copied), precision="int8", num_slots=1, max_attempts=1)
    assert served.view().halting.threshold == 1.5


def test_golden_traces_that_are_missing_or_do_not_fit_are_refused(copied: Path):
    restate(copied, max_segments=5)
    with pytest.raises(BundleError, match="they cover 6 segments instead of 1 to 5"):
        Bundle.open(copied).golden()
    (copied / "golden.npz").write_bytes(b"PK no zip")
    restate(copied)
    for read in (Bundle.golden, Bundle.golden_example):
        with pytest.raises(BundleError, match="cannot be read"):
            read(Bundle.open(copied))
    (copied / "golden.npz").unlink()
    restate(copied)
    with pytest.raises(BundleError, match="holds no golden"):
        Bundle.open(copied).golden()
    assert Bundle.open(copied).golden_example() is None


OUT_OF_RANGE = {"tokens_BT": -1, "puzzle_ids_B": 3}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_golden_puzzles_that_no_model_reads_are_refused(name: str, copied: Path):
    arrays = dict(np.load(copied / "golden.npz"))
    np.savez(copied / "golden.npz", **{**arrays, name: arrays[name] * 0 + OUT_OF_RANGE[name]})
    restate(copied)
    with pytest.raises(BundleError, match=rf"cannot be read \({name} is empty or not from 0 to"):
        Bundle.open(copied).golden()


def test_an_archive_in_place_of_the_table_is_refused(copied: Path):
    with (copied / "puzzle_table.npy").open("wb") as file:
        np.savez(file, np.zeros((3, 4), np.float32))
    restate(copied)
    refused(copied, "is not an array")


def test_a_manifest_that_would_be_refused_is_not_written(copied: Path):
    before = (copied / "manifest.json").read_bytes()
    with pytest.raises(BundleError, match="max_segments"):
        restate(copied, max_segments=0)
    assert (copied / "manifest.json").read_bytes() == before
    assert not list(copied.glob("*.tmp"))


def test_golden_arrays_are_bounded(copied: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hrm_edge_runtime.contract.bundle.MAX_ARRAY_BYTES", 1 << 20)
    header = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (1 << 20,)}
    np.lib.format.write_array_header_1_0(header, fields)
    with zipfile.ZipFile(copied / "golden.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tokens_BT.npy", header.getvalue() + b"\0" * (4 << 20))
    restate(copied)
    with pytest.raises(BundleError, match=r"states .* bytes"):
        Bundle.open(copied).golden()


def test_a_row_is_found_by_its_name_and_all_rows_whose_names_begin_alike():
    names = ["<blank>", "ab", "ä_1", "ab_2", "abc", "a", "ab_1"]
    found = Identifiers(names)
    assert [found.row_of(name) for name in names] == list(range(7))
    for unknown in ("", "b", "ab_", "ab_11", "ab\0", "z" * 300):
        assert found.row_of(unknown) is None
    beginning = {"ab": [1, 3, 4, 6], "ab_2": [3], "ab_22": [], "ä": [2]}
    for start, rows in beginning.items():
        assert found.rows_beginning(start) == rows
    assert not Identifiers(["a", "b", "a"]).are_different


def test_the_tasks_of_a_bundle_are_those_of_its_names_where_no_file_states_them():
    bundle = shipped("arc-7x7")
    files = {name: entry for name, entry in bundle.manifest.files.items() if name != "tasks.json"}
    older = with_manifest(bundle, files=files)
    assert sorted(older.tasks()) == sorted(bundle.tasks())
    assert len(bundle.tasks()) == 76
    assert older.example() == older.golden_example()


@pytest.fixture
def arc(tmp_path: Path) -> Path:
    """A copy of the smallest ARC bundle."""
    return Path(shutil.copytree(find_bundle("arc-7x7"), tmp_path / "arc.bundle"))


def test_a_bundle_begins_with_the_tasks_that_its_model_answers_right(arc: Path):
    bundle = Bundle.open(arc)
    results = bundle.manifest.held_out_tasks
    assert bundle.tasks()[: len(results.right)] == results.right
    name = results.right[0]
    pair = json.loads((arc / "tasks.json").read_text())[name]["test"][0]
    question = {"task": name, "input": pair["input"]}
    answer = {"task": name, "input": pair["output"]}
    assert bundle.example() == (question, answer)
    stating(held_out_tasks=None)(arc)
    without_results = Bundle.open(arc)
    assert without_results.example() == without_results.golden_example()


@pytest.mark.parametrize(
    ("results", "problem"),
    [
        ({"attempts": 16, "num_tasks": 1, "right": ["a", "b"]}, "right names 2 of 1 tasks"),
        ({"attempts": 16, "num_tasks": 9, "right": ["a", "a"]}, "right names a task twice"),
        ({"attempts": 1, "num_tasks": 9, "right": ["\u202e"]}, "control or direction"),
    ],
)
def test_task_results_that_cannot_be_are_rejected(arc: Path, results: Fields, problem: str):
    stating(held_out_tasks=results)(arc)
    refused(arc, problem)


@pytest.mark.parametrize("tests", [[], [{"input": [[1]]}], [{"input": [[1]], "output": "x"}], 5])
def test_a_right_task_needs_its_held_out_pair(arc: Path, tests: object):
    with edited(arc / "tasks.json") as tasks:
        first = next(iter(tasks))
        tasks[first]["test"] = tests
    restate(arc)
    with pytest.raises(BundleError, match=f"lacks a held-out pair of the task '{first}'"):
        Bundle.open(arc).example()
