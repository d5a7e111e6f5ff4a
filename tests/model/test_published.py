"""Published checkpoints: their formulas, computed a second time in numpy, and hostile files."""

import os
import pickle
import re
import sys
import threading
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from export_tools import engine_of
from published_tools import (
    HEADS,
    INNER,
    LAYERS,
    SEGMENTS,
    SEQ_LEN,
    TRM_PREFIX,
    VOCAB,
    WIDTH,
    Array,
    Arrays,
    Weights,
    architecture,
    published_state,
    tensors_of,
)
from torch import Tensor
from typer.testing import CliRunner

from hrm_export.segment import segment_graph
from hrm_export.torch_engine import record
from hrm_model import checkpoint
from hrm_model.checkpoint import CheckpointError
from hrm_model.import_cli import main as app
from hrm_model.published import model_from_published
from hrm_puzzles.data.sources import Questions

TOLERANCE = 1e-5  # float32 rounding over 8 segments against float64
TRM_TOLERANCE = 1e-4  # the same after 128 blocks instead of 48


def write_published(
    directory: Path,
    positions: str = "rope",
    prefix: str = "_orig_mod.model.",
    cycles: tuple[int, int] = (2, 2),
) -> Arrays:
    state = published_state(positions)
    torch.save(tensors_of(state, prefix), directory / "step_100")
    settings = {"arch": architecture(positions, cycles), "seed": 0}
    (directory / "all_config.yaml").write_text(yaml.safe_dump(settings))
    return state


class Reference:
    """The published formulas for one row, in float64: only the model's own rounding differs."""

    prefix = 2  # 40 values need two prefix positions of 32

    def __init__(self, state: Arrays, positions: str, cycles: tuple[int, int]) -> None:
        self.cycles = cycles
        self.positions = positions
        self.w: Arrays = {}
        for name, array in state.items():
            self.w[name.removeprefix("inner.")] = array.astype(np.float64)

    def rms(self, x: Array) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def rope(self, x: Array) -> Array:
        half = x.shape[-1] // 2
        frequencies = 10000.0 ** (-np.arange(half) / half)
        angle = np.arange(len(x))[:, None] * frequencies
        twice = np.concatenate([angle, angle], 1)
        turned = np.concatenate([-x[:, half:], x[:, :half]], 1)
        return x * np.cos(twice) + turned * np.sin(twice)

    def attention(self, key: str, x: Array) -> Array:
        size = WIDTH // HEADS
        qkv = x @ self.w[key + "self_attn.qkv_proj.weight"].T
        qkv_3HND = qkv.reshape(len(x), 3, HEADS, size).transpose(1, 2, 0, 3)
        mixed: list[Array] = []
        for q, k, v in zip(*qkv_3HND, strict=True):
            if self.positions == "rope":
                q = self.rope(q)
                k = self.rope(k)
            score = q @ k.T / np.sqrt(size)
            weight = np.exp(score - score.max(-1, keepdims=True))
            share = weight / weight.sum(-1, keepdims=True)
            mixed.append(share @ v)
        return np.concatenate(mixed, 1) @ self.w[key + "self_attn.o_proj.weight"].T

    def mlp(self, key: str, x: Array) -> Array:
        both = x @ self.w[f"{key}.gate_up_proj.weight"].T
        gate = both[:, :INNER]
        up = both[:, INNER:]
        inner = gate / (1 + np.exp(-gate)) * up
        return inner @ self.w[f"{key}.down_proj.weight"].T

    def level(self, name: str, state: Array, injection: Array) -> Array:
        h = state + injection
        for layer in range(LAYERS):
            key = f"{name}_level.layers.{layer}."
            h = self.rms(h + self.attention(key, h))
            h = self.rms(h + self.mlp(key + "mlp", h))
        return h

    def embed(self, tokens: Array, puzzle_id: int) -> Array:
        vector = np.zeros(self.prefix * WIDTH)
        vector[:40] = self.w["puzzle_emb.weights"][puzzle_id]
        cells = self.w["embed_tokens.embedding_weight"][tokens]
        x = np.concatenate([vector.reshape(self.prefix, WIDTH), cells])
        if self.positions == "learned":
            x = np.sqrt(0.5) * (x + self.w["embed_pos.embedding_weight"])
        return np.sqrt(WIDTH) * x

    def run(self, tokens: Array, puzzle_id: int) -> list[tuple[Array, Array]]:
        x = self.embed(tokens, puzzle_id)
        z_high = np.broadcast_to(self.w["H_init"], x.shape)
        z_low = np.broadcast_to(self.w["L_init"], x.shape)
        outputs: list[tuple[Array, Array]] = []
        for _ in range(SEGMENTS):
            for _ in range(self.cycles[0]):
                for _ in range(self.cycles[1]):
                    z_low = self.level("L", z_low, z_high + x)
                z_high = self.level("H", z_high, z_low)
            q = self.w["q_head.weight"] @ z_high[0] + self.w["q_head.bias"]
            logits = z_high[self.prefix :] @ self.w["lm_head.weight"].T
            outputs.append((logits, q))
        return outputs

    def run_all(self, tokens_BT: Array) -> list[list[tuple[Array, Array]]]:
        return [self.run(row, puzzle_id) for puzzle_id, row in enumerate(tokens_BT)]


@pytest.mark.parametrize(
    ("positions", "cycles"), [("rope", (2, 2)), ("learned", (2, 2)), ("rope", (1, 3))]
)
def test_segments_equal_the_published_formulas(
    tmp_path: Path, positions: str, cycles: tuple[int, int]
) -> None:
    reference = Reference(write_published(tmp_path, positions, cycles=cycles), positions, cycles)
    model = model_from_published(tmp_path, SEQ_LEN)
    tokens_BT = np.random.default_rng(1).integers(0, VOCAB, (3, SEQ_LEN))
    expected = reference.run_all(tokens_BT)
    carry = model.start(3)
    for segment in range(SEGMENTS):
        with torch.no_grad():
            output = model.segment(carry, torch.from_numpy(tokens_BT), torch.arange(3))
        carry = output.carry
        for row in range(3):
            logits, (q_halt, q_continue) = expected[row][segment]
            found = output.logits_BTV[row].numpy()
            assert found == pytest.approx(logits, rel=0, abs=TOLERANCE)
            assert float(output.q_halt_B[row]) == pytest.approx(q_halt, abs=TOLERANCE)
            assert float(output.q_continue_B[row]) == pytest.approx(q_continue, abs=TOLERANCE)


class TrmReference(Reference):
    """One level for both; `mlp_t` is a SwiGLU over positions in place of attention."""

    prefix = TRM_PREFIX

    def level(self, _: str, state: Array, injection: Array) -> Array:
        h = state + injection
        for layer in range(LAYERS):
            key = f"L_level.layers.{layer}."
            if key + "mlp_t.down_proj.weight" in self.w:
                h = self.rms(h.T + self.mlp(key + "mlp_t", h.T)).T
            else:
                h = self.rms(h + self.attention(key, h))
            h = self.rms(h + self.mlp(key + "mlp", h))
        return h


def write_trm(directory: Path, positions: str, *, mixes: bool) -> Arrays:
    num_positions = TRM_PREFIX + SEQ_LEN
    state = published_state(positions, prefix=TRM_PREFIX, levels="L")
    if mixes:
        state = {name: array for name, array in state.items() if "self_attn" not in name}
        mixer = Weights(8)
        for layer in range(LAYERS):
            key = f"L_level.layers.{layer}.mlp_t"
            mixer.matrix(f"{key}.gate_up_proj", 2 * INNER, num_positions, gain=0.5)
            mixer.matrix(f"{key}.down_proj", num_positions, INNER, gain=0.5)
        state |= mixer.state
    arch = architecture(positions, (2, 3))
    arch |= {"name": "recursive_reasoning.trm@TinyRecursiveReasoningModel_ACTV1"}
    arch |= {"H_layers": 0, "mlp_t": mixes, "puzzle_emb_len": TRM_PREFIX}
    arch |= {"no_ACT_continue": True, "forward_dtype": "bfloat16"}
    settings = {"arch": arch, "ema": True, "data_paths": ["x"]}
    torch.save(tensors_of(state, "_orig_mod.model."), directory / "step_9")
    (directory / "all_config.yaml").write_text(yaml.safe_dump(settings))
    return state


@pytest.mark.parametrize(
    ("positions", "mixes"),
    [("rope", False), ("learned", False), ("none", False), ("none", True), ("rope", True)],
)
def test_a_published_trm_equals_its_formulas_in_pytorch_and_onnx(
    tmp_path: Path, positions: str, mixes: bool
) -> None:
    reference = TrmReference(write_trm(tmp_path, positions, mixes=mixes), positions, (2, 3))
    model = model_from_published(tmp_path, SEQ_LEN)
    tokens_BT = np.random.default_rng(1).integers(1, VOCAB, (3, SEQ_LEN), dtype=np.int32)
    expected = reference.run_all(tokens_BT)
    ids_B = np.arange(3, dtype=np.int32)
    questions = Questions(
        tokens_NT=tokens_BT, labels_NT=tokens_BT, puzzle_ids_N=ids_B, source="here"
    )
    engine = engine_of(segment_graph(model), model, questions, tmp_path)
    trace = record(model, questions)
    for segment in range(SEGMENTS):
        step = engine.step(3)
        assert step.logits_BTV is not None
        for row in range(3):
            logits, (q_halt, _) = expected[row][segment]
            wanted = pytest.approx(logits, rel=0, abs=TRM_TOLERANCE)
            assert trace.logits_SBTV[segment, row] == wanted
            assert step.logits_BTV[row] == wanted
            wanted = pytest.approx(q_halt, abs=TRM_TOLERANCE)
            assert trace.q_halt_SB[segment, row] == wanted
            assert step.q_halt_B[row] == wanted
        assert (trace.halt_margin_SB[segment] == trace.q_halt_SB[segment]).all()
        assert (step.halt_margin_B == step.q_halt_B).all()


@pytest.mark.parametrize("prefix", ["_orig_mod.model.", "model.", ""])
def test_prefixes_are_optional_and_a_weight_file_is_read_as_its_directory_is(
    tmp_path: Path, prefix: str
) -> None:
    state = write_published(tmp_path, prefix=prefix)
    for source in (tmp_path, tmp_path / "step_100"):
        model = model_from_published(source, SEQ_LEN)
        assert np.array_equal(model.puzzle_table.numpy(), state["inner.puzzle_emb.weights"])


def test_the_last_step_is_the_one_with_the_largest_number(tmp_path: Path) -> None:
    write_published(tmp_path)
    later = published_state(seed=8)
    torch.save(tensors_of(later), tmp_path / "step_1000")
    (tmp_path / "step_100_all_preds.0").write_bytes(b"predictions, not weights")
    model = model_from_published(tmp_path, SEQ_LEN)
    assert np.array_equal(model.puzzle_table.numpy(), later["inner.puzzle_emb.weights"])


@pytest.mark.parametrize(
    ("settings", "names", "reason"),
    [
        ("hidden 32", "{}", "has the model_config 'hidden 32'; only a dict"),
        ({}, "{}", "lacks or misstates 'num_heads'"),
        ({"seq_len": 81}, "{}", "is for 81 tokens, but the puzzle has 16"),
        ({"name": "gpt"}, "{}", "describes .*; only hrm_act_v1 and trm can be imported"),
        ({}, "encoder.{}", "tensor 'encoder.H_init' is not of a published model"),
    ],
)
def test_settings_in_the_file_are_rejected_with_the_reason(
    tmp_path: Path, settings: object, names: str, reason: str
) -> None:
    named: dict[str, Tensor] = {}
    for name, tensor in tensors_of(published_state()).items():
        named[names.format(name.removeprefix("inner."))] = tensor
    torch.save({"model_config": settings, "model_state_dict": named}, tmp_path / "hrm-v2.pt")
    with pytest.raises(CheckpointError, match=reason):
        model_from_published(tmp_path / "hrm-v2.pt", SEQ_LEN)


class Hub(BaseHTTPRequestHandler):
    files: Path

    def do_HEAD(self) -> None:
        repository, _, name = self.path.partition("/resolve/main/")
        file = self.files / name
        content = b""
        if repository == "/org/loop":
            self.send_response(302)
            self.send_header("Location", self.path)
        elif repository == "/org/name" and file.is_file():
            content = file.read_bytes()
            self.send_response(200)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("ETag", f'"{name}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_GET = do_HEAD

    def log_message(self, *_: object) -> None: ...


def test_a_hub_name_is_downloaded_and_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub", reason="the extra 'hub' is not installed")
    there = tmp_path / "there"
    there.mkdir()
    state = write_published(there)
    (there / "step_100").rename(there / "checkpoint")
    here = type("Here", (Hub,), {"files": there})
    options = ["--puzzle", "sudoku-4x4", "--out", str(tmp_path / "out")]
    with ThreadingHTTPServer(("127.0.0.1", 0), here) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        for name in list(sys.modules):
            if name.partition(".")[0] == "huggingface_hub":
                monkeypatch.delitem(sys.modules, name)  # it reads its environment on import
        imported = CliRunner().invoke(app, ["hub:org/name", *options])
        absent = CliRunner().invoke(app, ["hub:org/other", *options])
        looped = CliRunner().invoke(app, ["hub:org/loop", *options])
        server.shutdown()
    assert re.search(r"cannot fetch hub:org/other \(.*\); check the name", absent.output)
    assert re.search(r"cannot fetch hub:org/loop \(Exceeded .*redirects", looped.output)
    assert imported.exit_code == 0, imported.output
    model, meta = checkpoint.load(tmp_path / "out")
    assert np.array_equal(model.puzzle_table.numpy(), state["inner.puzzle_emb.weights"])
    assert (meta["puzzle"], meta["imported_from"]) == ("sudoku-4x4", "name")


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("was-run",))


def doubling_yaml() -> str:
    """A short text whose aliases expand to 40 ** 8 values."""
    lines = ["a0: &a0 [x]"]
    for number in range(1, 9):
        aliases = f"*a{number - 1}, " * 40
        lines.append(f"a{number}: &a{number} [{aliases}]")
    return "\n".join([*lines, "arch: *a8"])


def of_arch(**changes: object) -> str:
    return yaml.safe_dump({"arch": {**architecture("rope", (2, 2)), **changes}})


def cut(folder: Path, share: float) -> None:
    file = folder / "step_100"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])


def save(content: object, folder: Path) -> None:
    torch.save(content, folder / "step_100")


def save_plain_pickle(folder: Path) -> None:
    (folder / "step_100").write_bytes(pickle.dumps(Hostile()))


def remove(name: str, folder: Path) -> None:
    (folder / name).unlink()


def save_changed(change: Callable[[Tensor], Tensor], folder: Path) -> None:
    tensors = tensors_of(published_state())
    name = "inner.embed_tokens.embedding_weight"
    save({**tensors, name: change(tensors[name])}, folder)


def write_settings(text: str, folder: Path) -> None:
    (folder / "all_config.yaml").write_text(text)


HOSTILE_WEIGHTS: dict[str, Any] = {
    "code": {"model.inner.H_init": Hostile()},
    "a list": [torch.zeros(3)],
    "settings that are a list": {"model_state_dict": {}, "model_config": [1]},
    "nothing": {},
}
HOSTILE_TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "not a number": lambda tensor: tensor * torch.nan,
    "of one dimension less": lambda tensor: tensor[0],
    "sparse": Tensor.to_sparse,
    "on no device": lambda tensor: tensor.to("meta"),
    "far larger than the file": lambda tensor: torch.zeros(1).expand(1 << 24, tensor.shape[-1]),
}
HOSTILE_SETTINGS = {
    "no mapping": "- 1",
    "another model": "arch: {name: recursive_reasoning.trm_singlez@TRM}",
    "deep": "[" * 5000,
    "aliases without end": doubling_yaml(),
    "an object": "arch: !!python/object/apply:os.mkdir [was-run]",
    "heads of text": of_arch(num_heads="four"),
    "endless segments": of_arch(halt_max_steps=10**12),
    "positions that are a list": of_arch(pos_encodings=["rope"]),
}
BREAKING: dict[str, Callable[[Path], object]] = {
    "cut at a tenth": partial(cut, share=0.1),
    "cut before its end": partial(cut, share=0.99),
    "no settings": partial(remove, "all_config.yaml"),
    "no weights": partial(remove, "step_100"),
    "a plain pickle": save_plain_pickle,
}
for case, content in HOSTILE_WEIGHTS.items():
    BREAKING[f"weights: {case}"] = partial(save, content)
for case, change in HOSTILE_TENSORS.items():
    BREAKING[f"tensor: {case}"] = partial(save_changed, change)
for case, text in HOSTILE_SETTINGS.items():
    BREAKING[f"settings: {case}"] = partial(write_settings, text)


@pytest.mark.parametrize("name", BREAKING)
def test_a_broken_or_hostile_run_is_rejected_in_one_sentence_and_runs_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_published(tmp_path)
    BREAKING[name](tmp_path)
    options = ["--puzzle", "sudoku-4x4", "--out", str(tmp_path / "out")]
    ended = CliRunner().invoke(app, [str(tmp_path), *options])
    assert isinstance(ended.exception, SystemExit), ended.exception
    assert ended.exit_code == 2, ended.output
    assert ended.stderr.count("\n") == 1, ended.output
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "was-run").exists()
