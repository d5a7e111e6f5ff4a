"""The model against the published formulas, computed here a second time in plain numpy."""

import hashlib
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
from typer.testing import CliRunner

from hrm_export.segment import segment_graph
from hrm_export.torch_engine import record
from hrm_model import checkpoint
from hrm_model.checkpoint import CheckpointError
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_model.import_cli import main as app
from hrm_model.published import model_from_published
from hrm_puzzles.data.sources import Questions

SEQ_LEN, VOCAB, WIDTH, HEADS, LAYERS, IDS = 12, 7, 32, 4, 2, 3
INTER = 256
TOLERANCE = 1e-5
"""float32 rounding over 8 segments against float64."""
TRM_TOLERANCE = 1e-4
"""The same after 128 blocks instead of 48."""

Arrays = dict[str, np.ndarray[Any, Any]]


def architecture(positions: str, cycles: tuple[int, int]) -> dict[str, Any]:
    return {
        "name": "hrm.hrm_act_v1@HierarchicalReasoningModel_ACTV1",
        "loss": {"name": "losses@ACTLossHead", "loss_type": "stablemax_cross_entropy"},
        "H_cycles": cycles[0],
        "L_cycles": cycles[1],
        "H_layers": LAYERS,
        "L_layers": LAYERS,
        "hidden_size": WIDTH,
        "num_heads": HEADS,
        "expansion": 4,
        "puzzle_emb_ndim": 40,
        "pos_encodings": positions,
        "halt_max_steps": 8,
        "halt_exploration_prob": 0.1,
    }


def published_state(positions: str, rng: np.random.Generator) -> Arrays:
    """Weights under the published key names.

    The blocks get 0.7 of the published starting spread: at all of it an untrained recurrence is chaotic and multiplies
    float32 rounding by a hundred within 8 segments, which no implementation survives at this tolerance.
    """

    def normal(*shape: int, spread: float) -> np.ndarray[Any, Any]:
        return (spread * rng.standard_normal(shape)).astype(np.float32)

    state: Arrays = {
        "inner.H_init": normal(WIDTH, spread=1),
        "inner.L_init": normal(WIDTH, spread=1),
        "inner.embed_tokens.embedding_weight": normal(VOCAB, WIDTH, spread=WIDTH**-0.5),
        "inner.lm_head.weight": normal(VOCAB, WIDTH, spread=WIDTH**-0.5),
        "inner.q_head.weight": normal(2, WIDTH, spread=0.3),
        "inner.q_head.bias": normal(2, spread=1),
        "inner.puzzle_emb.weights": normal(IDS, 40, spread=0.3),
    }
    if positions == "learned":
        state["inner.embed_pos.embedding_weight"] = normal(SEQ_LEN + 2, WIDTH, spread=WIDTH**-0.5)
    for level in "HL":
        for layer in range(LAYERS):
            key = f"inner.{level}_level.layers.{layer}."
            state[key + "self_attn.qkv_proj.weight"] = normal(
                3 * WIDTH, WIDTH, spread=0.7 * WIDTH**-0.5
            )
            state[key + "self_attn.o_proj.weight"] = normal(WIDTH, WIDTH, spread=0.7 * WIDTH**-0.5)
            state[key + "mlp.gate_up_proj.weight"] = normal(
                2 * INTER, WIDTH, spread=0.7 * WIDTH**-0.5
            )
            state[key + "mlp.down_proj.weight"] = normal(WIDTH, INTER, spread=0.7 * INTER**-0.5)
    return state


def write_published(
    directory: Path,
    positions: str,
    prefix: str = "_orig_mod.model.",
    cycles: tuple[int, int] = (2, 2),
) -> Arrays:
    state = published_state(positions, np.random.default_rng(7))
    torch.save(
        {prefix + name: torch.from_numpy(array) for name, array in state.items()},
        directory / "step_100",
    )
    (directory / "all_config.yaml").write_text(
        yaml.safe_dump({"arch": architecture(positions, cycles), "seed": 0})
    )
    return state


class Reference:
    """The published formulas, one row at a time, in float64 so that only the model's own rounding is measured."""

    prefix = 2  # 40 values need two prefix positions of 32

    def __init__(self, state: Arrays, positions: str, cycles: tuple[int, int]) -> None:
        self.cycles = cycles
        self.w = {
            name.removeprefix("inner."): array.astype(np.float64) for name, array in state.items()
        }
        self.positions = positions

    def rms(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def rope(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """x [positions, head width]"""
        size = x.shape[-1]
        angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)[None]
        cos, sin = (
            np.cos(np.concatenate([angle, angle], 1)),
            np.sin(np.concatenate([angle, angle], 1)),
        )
        turned = np.concatenate([-x[:, size // 2 :], x[:, : size // 2]], 1)
        return x * cos + turned * sin

    def attention(self, key: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        qkv = x @ self.w[key + "self_attn.qkv_proj.weight"].T
        size = WIDTH // HEADS
        mixed = []
        for head in range(HEADS):
            q, k, v = (qkv[:, (part * HEADS + head) * size :][:, :size] for part in range(3))
            if self.positions == "rope":
                q, k = self.rope(q), self.rope(k)
            score = q @ k.T / np.sqrt(size)
            weight = np.exp(score - score.max(-1, keepdims=True))
            mixed.append(weight / weight.sum(-1, keepdims=True) @ v)
        return np.concatenate(mixed, 1) @ self.w[key + "self_attn.o_proj.weight"].T

    def mlp(self, key: str, x: np.ndarray[Any, Any], name: str = "mlp") -> np.ndarray[Any, Any]:
        both = x @ self.w[f"{key}{name}.gate_up_proj.weight"].T
        gate, up = both[:, :INTER], both[:, INTER:]
        return (gate / (1 + np.exp(-gate)) * up) @ self.w[f"{key}{name}.down_proj.weight"].T

    def level(
        self, name: str, state: np.ndarray[Any, Any], injection: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        h = state + injection
        for layer in range(LAYERS):
            key = f"{name}_level.layers.{layer}."
            h = self.rms(h + self.attention(key, h))
            h = self.rms(h + self.mlp(key, h))
        return h

    def embed(self, tokens: np.ndarray[Any, Any], puzzle_id: int) -> np.ndarray[Any, Any]:
        row = np.zeros(self.prefix * WIDTH)
        row[:40] = self.w["puzzle_emb.weights"][puzzle_id]
        x = np.concatenate(
            [row.reshape(self.prefix, WIDTH), self.w["embed_tokens.embedding_weight"][tokens]]
        )
        if self.positions == "learned":
            x = np.sqrt(0.5) * (x + self.w["embed_pos.embedding_weight"])
        return np.sqrt(WIDTH) * x

    def run(
        self, tokens: np.ndarray[Any, Any], puzzle_id: int, segments: int
    ) -> list[tuple[Any, Any]]:
        x = self.embed(tokens, puzzle_id)
        z_high = np.broadcast_to(self.w["H_init"], x.shape)
        z_low = np.broadcast_to(self.w["L_init"], x.shape)
        outputs: list[tuple[Any, Any]] = []
        for _ in range(segments):
            for _ in range(self.cycles[0]):
                for _ in range(self.cycles[1]):
                    z_low = self.level("L", z_low, z_high + x)
                z_high = self.level("H", z_high, z_low)
            q = self.w["q_head.weight"] @ z_high[0] + self.w["q_head.bias"]
            outputs.append((z_high[self.prefix :] @ self.w["lm_head.weight"].T, q))
        return outputs


@pytest.mark.parametrize(
    ("positions", "cycles"), [("rope", (2, 2)), ("learned", (2, 2)), ("rope", (1, 3))]
)
def test_segments_equal_the_published_formulas(
    tmp_path: Path, positions: str, cycles: tuple[int, int]
) -> None:
    reference = Reference(write_published(tmp_path, positions, cycles=cycles), positions, cycles)
    model = model_from_published(tmp_path, SEQ_LEN)
    tokens_BT = np.random.default_rng(1).integers(0, VOCAB, (3, SEQ_LEN))
    expected = [
        reference.run(row, puzzle_id, segments=8) for puzzle_id, row in enumerate(tokens_BT)
    ]
    with torch.no_grad():
        carry = model.start(3)
        for segment in range(8):
            output = model.segment(carry, torch.from_numpy(tokens_BT), torch.arange(3))
            carry = output.carry
            for row in range(3):
                logits, q = expected[row][segment]
                assert np.abs(output.logits_BTV[row].numpy() - logits).max() <= TOLERANCE
                assert abs(float(output.q_halt_B[row]) - q[0]) <= TOLERANCE
                assert abs(float(output.q_continue_B[row]) - q[1]) <= TOLERANCE


class TrmReference(Reference):
    """One level for both; with `mlp_t` a SwiGLU over positions, normalised over them, in place of attention."""

    prefix = 16

    def level(
        self, _: str, state: np.ndarray[Any, Any], injection: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        h = state + injection
        for layer in range(LAYERS):
            key = f"L_level.layers.{layer}."
            if key + "mlp_t.down_proj.weight" in self.w:
                h = self.rms(h.T + self.mlp(key, h.T, "mlp_t")).T
            else:
                h = self.rms(h + self.attention(key, h))
            h = self.rms(h + self.mlp(key, h))
        return h


def write_trm(directory: Path, positions: str, *, mixes: bool) -> Arrays:
    rng, num_positions = np.random.default_rng(7), TrmReference.prefix + SEQ_LEN
    state = {
        name: array for name, array in published_state("rope", rng).items() if "H_level" not in name
    }
    for name in [name for name in state if "self_attn" in name and mixes]:
        del state[name]
    for layer in range(LAYERS if mixes else 0):
        key = f"inner.L_level.layers.{layer}.mlp_t."
        for name, shape in (
            ("gate_up_proj", (2 * INTER, num_positions)),
            ("down_proj", (num_positions, INTER)),
        ):
            spread = 0.5 * shape[1] ** -0.5
            state[f"{key}{name}.weight"] = (spread * rng.standard_normal(shape)).astype(np.float32)
    if positions == "learned":
        table = rng.standard_normal((num_positions, WIDTH)) * WIDTH**-0.5
        state["inner.embed_pos.embedding_weight"] = table.astype(np.float32)
    published = {
        "name": "recursive_reasoning.trm@TinyRecursiveReasoningModel_ACTV1",
        "H_layers": 0,
        "mlp_t": mixes,
    }
    published |= {"puzzle_emb_len": 16, "no_ACT_continue": True, "forward_dtype": "bfloat16"}
    arch = architecture(positions, (2, 3)) | published
    torch.save(
        {f"_orig_mod.model.{name}": torch.from_numpy(array) for name, array in state.items()},
        directory / "step_9",
    )
    (directory / "all_config.yaml").write_text(
        yaml.safe_dump({"arch": arch, "ema": True, "data_paths": ["x"]})
    )
    return state


@pytest.mark.parametrize(
    ("positions", "mixes"),
    [("rope", False), ("learned", False), ("none", False), ("none", True), ("rope", True)],
)
def test_a_published_trm_says_in_pytorch_and_onnx_what_its_formulas_say(
    tmp_path: Path, positions: str, mixes: bool
) -> None:
    reference = TrmReference(write_trm(tmp_path, positions, mixes=mixes), positions, (2, 3))
    model = model_from_published(tmp_path, SEQ_LEN)
    tokens_BT = np.random.default_rng(1).integers(1, VOCAB, (3, SEQ_LEN), dtype=np.int32)
    expected = [
        reference.run(row, puzzle_id, segments=8) for puzzle_id, row in enumerate(tokens_BT)
    ]
    questions = Questions(
        tokens_NT=tokens_BT, labels_NT=tokens_BT, puzzle_ids_N=np.arange(3), source="here"
    )
    engine = engine_of(segment_graph(model), model, questions, tmp_path)
    said = record(model, questions)
    for segment in range(8):
        step = engine.step(3)
        assert step.logits_BTV is not None
        for row in range(3):
            logits, q = expected[row][segment]
            for ours, q_halt, margin in (
                (
                    said.logits_SBTV[segment, row],
                    said.q_halt_SB[segment, row],
                    said.halt_margin_SB[segment, row],
                ),
                (step.logits_BTV[row], step.q_halt_B[row], step.halt_margin_B[row]),
            ):
                assert np.abs(ours - logits).max() <= TRM_TOLERANCE
                assert abs(q_halt - q[0]) <= TRM_TOLERANCE
                assert margin == q_halt


def test_weights_of_a_mixer_fix_the_number_of_positions(tmp_path: Path) -> None:
    write_trm(tmp_path, "none", mixes=True)
    with pytest.raises(
        CheckpointError, match=r"mlp_t\.down_proj\.weight: expected \(29, 256\), found \(28, 256\)"
    ):
        model_from_published(tmp_path, SEQ_LEN + 1)


def test_the_published_trms_have_the_published_parameter_counts() -> None:
    trm = {
        "arch": "trm",
        "high_layers": 2,
        "low_layers": 2,
        "puzzle_positions": 16,
        "vocab_size": 11,
        "seq_len": 81,
    }
    with torch.device("meta"):
        counts = [
            sum(
                parameter.numel() for parameter in HRM(HRMConfig(**trm, blocks=blocks)).parameters()
            )
            for blocks in ("mixer", "attention")
        ]
    assert counts == [5_028_866, 6_828_034]  # "5M" and "7M" in the paper


@pytest.mark.parametrize("prefix", ["_orig_mod.model.", "model.", ""])
def test_compile_and_loss_head_prefixes_are_optional(tmp_path: Path, prefix: str) -> None:
    state = write_published(tmp_path, "rope", prefix)
    model = model_from_published(tmp_path, SEQ_LEN)
    assert np.array_equal(model.puzzle_table.numpy(), state["inner.puzzle_emb.weights"])


def test_initial_states_stored_in_bfloat16_are_read(tmp_path: Path) -> None:
    state = published_state("rope", np.random.default_rng(7))
    tensors = {"model." + name: torch.from_numpy(array) for name, array in state.items()}
    tensors["model.inner.H_init"] = tensors["model.inner.H_init"].bfloat16()
    write_published(tmp_path, "rope")
    torch.save(tensors, tmp_path / "step_100")
    model = model_from_published(tmp_path, SEQ_LEN)
    assert model.high_init.dtype == torch.float32
    assert torch.equal(model.high_init, tensors["model.inner.H_init"].float())


def test_the_published_sizes_have_the_published_parameter_count() -> None:
    with torch.device("meta"):
        model = HRM(HRMConfig(vocab_size=11, seq_len=81))
    assert sum(parameter.numel() for parameter in model.parameters()) == 27_275_266


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("was-run",))


def test_a_checkpoint_that_would_run_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_published(tmp_path, "rope")
    torch.save({"model.inner.H_init": Hostile()}, tmp_path / "step_100")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"not a plain file of tensors \(it would run \w+\.mkdir\)"
    ):
        model_from_published(tmp_path, SEQ_LEN)
    assert not (tmp_path / "was-run").exists()


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    state = write_published(tmp_path, "rope")
    del state["inner.lm_head.weight"]
    torch.save(
        {name: torch.from_numpy(array) for name, array in state.items()}, tmp_path / "step_100"
    )
    with pytest.raises(CheckpointError, match=r"lm_head\.weight: expected \(7, 32\), found None"):
        model_from_published(tmp_path, SEQ_LEN)


@pytest.mark.parametrize("break_it", ["no-config", "no-weights", "truncated", "other-model"])
def test_what_is_not_a_published_run_is_refused_in_one_sentence(
    tmp_path: Path, break_it: str
) -> None:
    write_published(tmp_path, "rope")
    if break_it == "no-config":
        (tmp_path / "all_config.yaml").unlink()
    elif break_it == "no-weights":
        (tmp_path / "step_100").unlink()
    elif break_it == "truncated":
        whole = (tmp_path / "step_100").read_bytes()
        (tmp_path / "step_100").write_bytes(whole[: len(whole) // 2])
    else:
        (tmp_path / "all_config.yaml").write_text(
            yaml.safe_dump({"arch": {"name": "recursive_reasoning.trm_singlez@TRM"}})
        )
    with pytest.raises(CheckpointError) as refusal:
        model_from_published(tmp_path, SEQ_LEN)
    assert "\n" not in str(refusal.value)


def test_the_last_step_is_the_one_with_the_largest_number(tmp_path: Path) -> None:
    write_published(tmp_path, "rope")
    later = published_state("rope", np.random.default_rng(8))
    torch.save(
        {name: torch.from_numpy(array) for name, array in later.items()}, tmp_path / "step_1000"
    )
    (tmp_path / "step_100_all_preds.0").write_bytes(b"predictions, not weights")
    model = model_from_published(tmp_path, SEQ_LEN)
    assert np.array_equal(model.puzzle_table.numpy(), later["inner.puzzle_emb.weights"])


def tensors_of(state: Arrays) -> dict[str, torch.Tensor]:
    return {name.removeprefix("inner."): torch.from_numpy(array) for name, array in state.items()}


def test_a_weight_file_is_read_as_its_directory_is(tmp_path: Path) -> None:
    state = write_published(tmp_path, "rope")
    model = model_from_published(tmp_path / "step_100", SEQ_LEN)
    assert np.array_equal(model.puzzle_table.numpy(), state["inner.puzzle_emb.weights"])


def test_a_file_that_carries_its_settings_needs_nothing_beside_it(tmp_path: Path) -> None:
    state, file = published_state("rope", np.random.default_rng(7)), tmp_path / "hrm-v2.pt"
    settings = {
        name: value
        for name, value in architecture("rope", (1, 3)).items()
        if name not in ("name", "loss")
    }
    torch.save(
        {"model_config": settings, "model_state_dict": tensors_of(state), "epoch": 7, "loss": 0.5},
        file,
    )
    model = model_from_published(file, SEQ_LEN)
    assert (model.config.high_cycles, model.config.low_cycles, model.config.max_segments) == (
        1,
        3,
        8,
    )
    assert np.array_equal(model.puzzle_table.numpy(), state["inner.puzzle_emb.weights"])


@pytest.mark.parametrize(
    ("settings", "names", "reason"),
    [
        ("hidden 32", "{}", "has the model_config 'hidden 32'; only a dict"),
        ({}, "{}", "lacks or misstates 'num_heads'"),
        ({"seq_len": 81}, "{}", "is for 81 tokens, but the puzzle has 12"),
        ({"name": "gpt"}, "{}", "describes .*; only hrm_act_v1 and trm are imported"),
        ({}, "encoder.{}", "tensor 'encoder.H_init' is not of a published model"),
    ],
)
def test_settings_in_the_file_are_refused_with_the_reason(
    tmp_path: Path, settings: object, names: str, reason: str
) -> None:
    state = tensors_of(published_state("rope", np.random.default_rng(7)))
    named = {names.format(name): tensor for name, tensor in state.items()}
    torch.save({"model_config": settings, "model_state_dict": named}, tmp_path / "hrm-v2.pt")
    with pytest.raises(CheckpointError, match=reason):
        model_from_published(tmp_path / "hrm-v2.pt", SEQ_LEN)


class Hub(BaseHTTPRequestHandler):
    """Two files of one repository, as the hub's HTTP interface hands them out."""

    files: Path

    def do_HEAD(self) -> None:
        path, content = self.path.partition("/resolve/main/"), b""
        file = self.files / path[2]
        found = path[0] == "/org/name" and file.is_file()
        if found:
            content = file.read_bytes()
        self.send_response(200 if found else 404)
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": "0" * 40}
        headers |= {"Content-Length": str(len(content))} | (
            {} if found else {"X-Error-Code": "RepoNotFound"}
        )
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if found and self.command == "GET":
            self.wfile.write(content)

    do_GET = do_HEAD

    def log_message(self, *_: object) -> None: ...


def test_a_hub_name_is_downloaded_and_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub", reason="the extra 'hub' is not installed")
    monkeypatch.setattr(sys.modules[__name__], "VOCAB", 6)
    (tmp_path / "there").mkdir()
    state = write_published(tmp_path / "there", "rope")
    (tmp_path / "there" / "step_100").rename(tmp_path / "there" / "checkpoint")
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Here", (Hub,), {"files": tmp_path / "there"})
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "home"),
    }
    for name, value in {**environment, "HF_HUB_DISABLE_XET": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, name)  # it reads its environment when it is imported
    options = ["--puzzle", "sudoku-4x4", "--out", str(tmp_path / "out")]
    try:
        told = CliRunner().invoke(app, ["hub:org/name", *options])
        refused = CliRunner().invoke(app, ["hub:org/other", *options])
    finally:
        server.shutdown()
        server.server_close()
    assert re.search(r"cannot fetch hub:org/other \(.*\); check the name", refused.output), (
        refused.output
    )
    assert told.exit_code == 0, told.output
    model, meta = checkpoint.load(tmp_path / "out")
    assert np.array_equal(model.puzzle_table.numpy(), state["inner.puzzle_emb.weights"])
    assert (meta["puzzle"], meta["imported_from"]) == ("sudoku-4x4", "name")


BOMB = "".join(
    [
        "a0: &a0 [x]\n",
        *(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 40}]\n" for n in range(1, 9)),
        "arch: *a8\n",
    ]
)


def cut(file: Path, share: float) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])


def of_arch(**changes: object) -> str:
    return yaml.safe_dump({"arch": {**architecture("rope", (2, 2)), **changes}})


HOSTILE_WEIGHTS: dict[str, Any] = {
    "a list": [torch.zeros(3)],
    "a number": 7,
    "a name that is none": {3: torch.zeros(2)},
    "a value that is no tensor": {"inner.H_init": [1.0]},
    "settings that are a list": {"model_state_dict": {}, "model_config": [1]},
    "settings alone": {"model_state_dict": {}, "model_config": {"name": "hrm_act_v1"}},
    "nothing": {},
}
HOSTILE_TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "not a number": lambda tensor: tensor * torch.nan,
    "infinite": lambda tensor: tensor + torch.inf,
    "of one dimension less": lambda tensor: tensor[0],
    "of one dimension more": lambda tensor: tensor[None],
    "empty": lambda tensor: tensor[:0],
    "sparse": torch.Tensor.to_sparse,
    "complex": lambda tensor: tensor + 0j,
    "whole numbers": torch.Tensor.int,
    "on no device": lambda tensor: tensor.to("meta"),
    "far larger than the file": lambda tensor: torch.zeros(1).expand(1 << 24, tensor.shape[-1]),
}
HOSTILE_SETTINGS = {
    "no mapping": "- 1",
    "no arch": "seed: 0",
    "no text": "\0",
    "deep": "[" * 5000,
    "a bomb": BOMB,
    "an object": "arch: !!python/object/apply:os.mkdir [was-run]",
    "heads of text": of_arch(num_heads="four"),
    "heads of none": of_arch(num_heads=0),
    "a list of layers": of_arch(L_layers=[1]),
    "endless segments": of_arch(halt_max_steps=10**12),
    "an expansion of no number": of_arch(expansion=float("nan")),
    "positions that are a list": of_arch(pos_encodings=["rope"]),
}
BREAKING: dict[str, Callable[[Path], object]] = {
    "cut at a tenth": lambda folder: cut(folder / "step_100", 0.1),
    "cut before its end": lambda folder: cut(folder / "step_100", 0.99),
    "empty": lambda folder: cut(folder / "step_100", 0),
    "settings missing": lambda folder: (folder / "all_config.yaml").unlink(),
    "a plain pickle": lambda folder: (folder / "step_100").write_bytes(pickle.dumps(Hostile())),
    **{name: partial(torch.save, content) for name, content in HOSTILE_WEIGHTS.items()},
}


def refused_import(folder: Path) -> str:
    told = CliRunner().invoke(
        app, [str(folder), "--puzzle", "sudoku-4x4", "--out", str(folder / "out")]
    )
    assert isinstance(told.exception, SystemExit), told.exception
    assert (told.exit_code, told.stderr.count("\n")) == (2, 1), told.output
    assert not (folder / "out").exists()
    assert not (folder / "was-run").exists()
    return told.stderr


@pytest.fixture
def published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, dict[str, torch.Tensor]]:
    """A whole run of the size of 4x4 Sudoku, and its tensors."""
    monkeypatch.setattr(sys.modules[__name__], "VOCAB", 6)
    monkeypatch.chdir(tmp_path)
    return tmp_path, {
        name: torch.from_numpy(array) for name, array in write_published(tmp_path, "rope").items()
    }


@pytest.mark.parametrize("name", BREAKING)
def test_a_broken_weight_file_is_refused_in_one_sentence(
    name: str, published: tuple[Path, object]
) -> None:
    breaking = BREAKING[name]
    breaking(published[0] / "step_100" if isinstance(breaking, partial) else published[0])
    refused_import(published[0])


@pytest.mark.parametrize("name", HOSTILE_TENSORS)
@pytest.mark.parametrize("of", ["embed_tokens.embedding_weight", "puzzle_emb.weights"])
def test_a_tensor_that_is_not_what_it_should_be_is_refused(
    name: str, of: str, published: tuple[Path, dict[str, torch.Tensor]]
) -> None:
    folder, tensors = published
    torch.save(
        {**tensors, f"inner.{of}": HOSTILE_TENSORS[name](tensors[f"inner.{of}"])},
        folder / "step_100",
    )
    refused_import(folder)


@pytest.mark.parametrize("name", HOSTILE_SETTINGS)
def test_settings_that_make_no_model_are_refused_in_one_sentence(
    name: str, published: tuple[Path, object]
) -> None:
    (published[0] / "all_config.yaml").write_text(HOSTILE_SETTINGS[name])
    refused_import(published[0])
