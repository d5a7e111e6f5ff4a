"""Published checkpoints and those of HRM-v2: formulas in float64, hostile files, answers."""

import io
import json
import os
import pickle
import re
import sys
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from cli_tools import invoked, rejected, succeeded
from export_tools import data_set
from safetensors.torch import save_file
from torch import Tensor

from hrm_edge import solve_many
from hrm_edge_runtime.api.schema import SolveAnswer
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_export.cli import main as export_main
from hrm_export.torch_engine import record
from hrm_model import checkpoint
from hrm_model.checkpoint import CheckpointError
from hrm_model.hrm import HRM
from hrm_model.import_cli import main as import_main
from hrm_model.published import model_from_published
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions, questions_made

TOLERANCE = 1e-5  # float32 rounding over 8 segments against float64
TRM_TOLERANCE = 1e-4  # the same after 128 blocks instead of 48
SEQ_LEN = 16  # of 4x4 Sudoku
VOCAB = 6
WIDTH = 32
HEADS = 4
LAYERS = 2
IDS = 3
INNER = 256
SEGMENTS = 8
TRM_PREFIX = 16
WEIGHTS = "step_100"
SETTINGS = "all_config.yaml"
TABLE = "inner.puzzle_emb.weights"
State = dict[str, Tensor]


def architecture(positions: str = "rope", cycles: tuple[int, int] = (2, 2)) -> dict[str, Any]:
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
        "halt_max_steps": SEGMENTS,
        "halt_exploration_prob": 0.1,
    }


def matrix(outputs: int, inputs: int, gain: float = 0.7) -> tuple[tuple[int, int], float]:
    """A shape and its spread.

    At a gain of 1 an untrained recurrence is chaotic: no implementation agrees to 1e-5.
    """
    return (outputs, inputs), gain * inputs**-0.5


def random_state(shapes: dict[str, tuple[tuple[int, ...], float]], seed: int) -> State:
    """Weights of these shapes and spreads under their published names."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, (shape, spread) in shapes.items():
        state[f"inner.{name}"] = spread * torch.randn(shape, generator=generator)
    return state


def published_state(
    positions: str = "rope",
    prefix: int = 2,
    levels: str = "HL",
    seed: int = 7,
    vocab: int = VOCAB,
    table: tuple[int, int] = (IDS, 40),
) -> State:
    """Return weights; `table` is the shape of the puzzle table, which is left out if empty."""
    spread = WIDTH**-0.5
    shapes = {
        "H_init": ((WIDTH,), 1),
        "L_init": ((WIDTH,), 1),
        "embed_tokens.embedding_weight": ((vocab, WIDTH), spread),
        "lm_head.weight": ((vocab, WIDTH), spread),
        "q_head.weight": ((2, WIDTH), 0.3),
        "q_head.bias": ((2,), 1),
    }
    if table[1]:
        shapes["puzzle_emb.weights"] = (table, 0.3)
    if positions == "learned":
        shapes["embed_pos.embedding_weight"] = ((SEQ_LEN + prefix, WIDTH), spread)
    for level in levels:
        for layer in range(LAYERS):
            key = f"{level}_level.layers.{layer}"
            shapes[f"{key}.self_attn.qkv_proj.weight"] = matrix(3 * WIDTH, WIDTH)
            shapes[f"{key}.self_attn.o_proj.weight"] = matrix(WIDTH, WIDTH)
            shapes[f"{key}.mlp.gate_up_proj.weight"] = matrix(2 * INNER, WIDTH)
            shapes[f"{key}.mlp.down_proj.weight"] = matrix(WIDTH, INNER)
    return random_state(shapes, seed)


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def write_settings(directory: Path, arch: object) -> None:
    (directory / SETTINGS).write_text(yaml.safe_dump({"arch": arch, "seed": 0}))


def write_published(directory: Path, positions: str = "rope", **arch: Any) -> State:
    state = published_state(positions)
    torch.save(prefixed(state, "_orig_mod.model."), directory / WEIGHTS)
    write_settings(directory, architecture(positions, **arch))
    return state


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a published run."""
    write_published(tmp_path)
    return tmp_path


class Reference:
    """The published formulas for one row, in float64: only the model's own rounding differs."""

    def __init__(
        self, state: State, positions: str, cycles: tuple[int, int], prefix: int = 2
    ) -> None:
        self.cycles = cycles
        self.positions = positions
        self.prefix = prefix  # 40 values need two positions of 32
        self.w = {}
        for name, tensor in state.items():
            self.w[name.removeprefix("inner.")] = tensor.double()

    def rms(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    def rope(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        frequencies = 10000.0 ** (-torch.arange(half).double() / half)
        angle = torch.arange(x.shape[-2])[:, None] * frequencies
        twice = torch.cat([angle, angle], 1)
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * twice.cos() + turned * twice.sin()

    def attention(self, key: str, x: Tensor) -> Tensor:
        qkv = x @ self.w[key + "self_attn.qkv_proj.weight"].T
        q, k, v = qkv.unflatten(1, (3, HEADS, -1)).permute(1, 2, 0, 3)
        if self.positions == "rope":
            q = self.rope(q)
            k = self.rope(k)
        score = q @ k.mT / q.shape[-1] ** 0.5
        mixed = score.softmax(-1) @ v
        return mixed.transpose(0, 1).flatten(1) @ self.w[key + "self_attn.o_proj.weight"].T

    def mlp(self, key: str, x: Tensor) -> Tensor:
        gate, up = (x @ self.w[f"{key}.gate_up_proj.weight"].T).chunk(2, -1)
        return (gate * gate.sigmoid() * up) @ self.w[f"{key}.down_proj.weight"].T

    def level(self, name: str, state: Tensor, injection: Tensor) -> Tensor:
        h = state + injection
        for layer in range(LAYERS):
            key = f"{name}_level.layers.{layer}."
            if key + "mlp_t.down_proj.weight" in self.w:  # a SwiGLU over positions
                h = self.rms(h.T + self.mlp(key + "mlp_t", h.T)).T
            else:
                h = self.rms(h + self.attention(key, h))
            h = self.rms(h + self.mlp(key + "mlp", h))
        return h

    def embed(self, tokens: Tensor, puzzle_id: int) -> Tensor:
        vector = torch.zeros(self.prefix * WIDTH, dtype=torch.float64)
        vector[:40] = self.w["puzzle_emb.weights"][puzzle_id]
        cells = self.w["embed_tokens.embedding_weight"][tokens]
        x = torch.cat([vector.reshape(self.prefix, WIDTH), cells])
        if self.positions == "learned":
            x = 0.5**0.5 * (x + self.w["embed_pos.embedding_weight"])
        return WIDTH**0.5 * x

    def run(self, tokens: Tensor, puzzle_id: int) -> tuple[Tensor, Tensor]:
        """Return logits and both halting values of every segment."""
        x = self.embed(tokens, puzzle_id)
        high = "H" if "H_level.layers.0.mlp.down_proj.weight" in self.w else "L"  # TRM has one
        z_high = self.w["H_init"].expand_as(x)
        z_low = self.w["L_init"].expand_as(x)
        logits = []
        q = []
        for _ in range(SEGMENTS):
            for _ in range(self.cycles[0]):
                for _ in range(self.cycles[1]):
                    z_low = self.level("L", z_low, z_high + x)
                z_high = self.level(high, z_high, z_low)
            q.append(self.w["q_head.weight"] @ z_high[0] + self.w["q_head.bias"])
            logits.append(z_high[self.prefix :] @ self.w["lm_head.weight"].T)
        return torch.stack(logits), torch.stack(q)


def assert_computes(reference: Reference, model: HRM, tolerance: float) -> None:
    """PyTorch computes the formulas, and halts by the model's own rule."""
    tokens_BT = np.random.default_rng(1).integers(1, VOCAB, (3, SEQ_LEN), dtype=np.int32)
    ids_B = np.arange(3, dtype=np.int32)
    questions = Questions(
        tokens_NT=tokens_BT, labels_NT=tokens_BT, puzzle_ids_N=ids_B, source="here"
    )
    trace = record(model, questions)
    assert_near = partial(np.testing.assert_allclose, rtol=0, atol=tolerance)
    rows = [reference.run(torch.from_numpy(row_T), row) for row, row_T in enumerate(tokens_BT)]
    logits_SBTV = torch.stack([logits for logits, _ in rows], 1)
    q_halt_SB, q_continue_SB = torch.stack([q for _, q in rows], 1).unbind(-1)
    is_alone = model.config.halt_rule == "q_halt"
    margin_SB = q_halt_SB if is_alone else q_halt_SB - q_continue_SB
    assert_near(trace.logits_SBTV, logits_SBTV)
    assert_near(trace.q_halt_SB, q_halt_SB)
    assert_near(trace.halt_margin_SB, margin_SB)


@pytest.mark.parametrize(
    ("positions", "cycles"), [("rope", (2, 2)), ("learned", (2, 2)), ("rope", (1, 3))]
)
def test_segments_equal_formulas(tmp_path: Path, positions: str, cycles: tuple[int, int]):
    reference = Reference(write_published(tmp_path, positions, cycles=cycles), positions, cycles)
    model = model_from_published(tmp_path, SEQ_LEN)
    assert model.config.halt_rule == "difference"
    assert_computes(reference, model, TOLERANCE)


def write_trm(directory: Path, positions: str, *, mixes: bool, alone: bool) -> State:
    num_positions = TRM_PREFIX + SEQ_LEN
    state = published_state(positions, prefix=TRM_PREFIX, levels="L")
    if mixes:
        state = {name: tensor for name, tensor in state.items() if "self_attn" not in name}
        mixer = {}
        for layer in range(LAYERS):
            key = f"L_level.layers.{layer}.mlp_t"
            mixer[f"{key}.gate_up_proj.weight"] = matrix(2 * INNER, num_positions, gain=0.5)
            mixer[f"{key}.down_proj.weight"] = matrix(num_positions, INNER, gain=0.5)
        state |= random_state(mixer, 8)
    arch = architecture(positions, (2, 3))
    arch |= {"name": "recursive_reasoning.trm@TinyRecursiveReasoningModel_ACTV1"}
    arch |= {"H_layers": 0, "mlp_t": mixes, "puzzle_emb_len": TRM_PREFIX}
    arch |= {"no_ACT_continue": alone, "forward_dtype": "bfloat16"}
    torch.save(prefixed(state, "_orig_mod.model."), directory / "step_9")
    write_settings(directory, arch)
    return state


@pytest.mark.parametrize(
    ("positions", "mixes", "alone"),
    [
        ("rope", False, True),
        ("rope", False, False),
        ("learned", False, True),
        ("none", False, True),
        ("none", True, True),
        ("rope", True, True),
    ],
)
def test_a_published_trm_equals_its_formulas(
    tmp_path: Path, positions: str, mixes: bool, alone: bool
):
    """TRM's code halts if q_halt > 0, and with a continue head if q_halt > q_continue."""
    state = write_trm(tmp_path, positions, mixes=mixes, alone=alone)
    reference = Reference(state, positions, (2, 3), TRM_PREFIX)
    model = model_from_published(tmp_path, SEQ_LEN)
    assert model.config.halt_rule == ("q_halt" if alone else "difference")
    assert_computes(reference, model, TRM_TOLERANCE)


PREFIXES = (
    "_orig_mod.model.",
    "model.",
    "",
    "module.model.",
    "_orig_mod.module.model.",
    "module._orig_mod.model.",
    "model._orig_mod.module.",
    "model.model.",
    "_fsdp_wrapped_module.model.",
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_come_in_any_order(tmp_path: Path, prefix: str):
    state = write_published(tmp_path)
    named = {name.replace("level.", "level._orig_mod."): one for name, one in state.items()}
    torch.save(prefixed(named, prefix), tmp_path / WEIGHTS)
    for source in (tmp_path, tmp_path / WEIGHTS):
        assert torch.equal(model_from_published(source, SEQ_LEN).puzzle_table, state[TABLE])


def change_settings(run: Path, **changes: object) -> None:
    """Write other settings; None removes one."""
    arch = {**architecture(), **changes}
    write_settings(run, {name: value for name, value in arch.items() if value is not None})


REJECTED = {
    "causal": True,
    "pre_norm": True,
    "use_qk_norm": True,
    "use_mamba2": False,
    "mlp_t": True,
    "puzzle_emb_len": 16,
    "no_ACT_continue": "no",
    "num_heads": "four",
    "H_cycles": 0,
    "L_layers": None,
    "expansion": "wide",
    "hidden_size": 64,
    "puzzle_emb_ndim": "${.width}",
    "pos_encodings": ["rope"],
    "halt_max_steps": 10**12,
}


@pytest.mark.parametrize("setting", REJECTED)
def test_a_setting_that_is_not_understood_is_rejected_by_name(setting: str, run: Path):
    change_settings(run, **{setting: REJECTED[setting]})
    with pytest.raises(CheckpointError, match=rf"all_config.yaml: .*\b{setting}\b"):
        model_from_published(run, SEQ_LEN)


ACCEPTED = {
    "off": {"causal": False, "pre_norm": False, "use_qk_norm": False, "mlp_t": False},
    "TRM's HRM": {"name": "recursive_reasoning.hrm@HierarchicalReasoningModel_ACTV1"},
    "no name": {"name": None},
    "from transformers": {
        "model_type": "hrm",
        "architectures": ["HRM"],
        "torch_dtype": "bfloat16",
        "transformers_version": "4.57.0",
    },
    "YAML's text": {"rms_norm_eps": "1e-5"},
    "a size": {"hidden_size": WIDTH, "puzzle_emb_ndim": 40},
    "a reference": {"batch_size": 40, "puzzle_emb_ndim": "${.batch_size}"},
    "a long reference": {"batch_size": 40, "puzzle_emb_ndim": "${arch.batch_size}"},
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_settings_that_change_nothing_are_read(name: str, run: Path):
    change_settings(run, **ACCEPTED[name])
    config = model_from_published(run, SEQ_LEN).config
    assert (config.arch, config.halt_rule, config.rms_norm_eps) == ("hrm", "difference", 1e-5)


def wrapped(kind: str, state: State) -> dict[str, Any]:
    """A state as trainers save it, raw or averaged."""
    return {
        "model_state_dict": {"model_state_dict": state, "epoch": 3},
        "state_dict": {"state_dict": state, "hyper_parameters": {"lr": 1.0}, "epoch": 3},
        "model": {"model": state, "optimizer": {"lr": 1.0}},
        "ema_state_dict": {"ema_state_dict": state},
        "ema": {"ema": state},
        "model_ema": {"model_ema": state},
        "shadow": {"ema": {"shadow": state, "decay": 0.999}},
        "prefix": {f"ema.{name}": tensor for name, tensor in state.items()},
        "swa": {"ema_model": {"n_averaged": torch.tensor(7), **state}},
        "lightning": {"state_dict": {f"ema.{name}": one for name, one in state.items()}},
    }[kind]


RAW = ("model_state_dict", "state_dict", "model")
AVERAGED = ("ema_state_dict", "ema", "model_ema", "shadow", "prefix", "swa", "lightning")


@pytest.mark.parametrize("kind", [*RAW, *AVERAGED])
def test_a_state_is_unwrapped_and_of_two_one_must_be_chosen(kind: str, run: Path):
    raw = prefixed(published_state(seed=9), "model.")
    average = prefixed(published_state(seed=10), "module.")

    def table_of(contents: dict[str, Any], weights: Any = None) -> Tensor:
        torch.save(contents, run / WEIGHTS)
        return model_from_published(run, SEQ_LEN, weights=weights).puzzle_table

    averaged = wrapped(kind, average)
    assert torch.equal(table_of(averaged), average[f"module.{TABLE}"])
    if kind in RAW:
        return
    both = {"state_dict": {**raw, **averaged.pop("state_dict", {})}, **averaged}
    average[f"module.{TABLE}"].mul_(torch.nan)
    assert torch.equal(table_of(both, "raw"), raw[f"model.{TABLE}"])
    average[f"module.{TABLE}"].fill_(3)
    with pytest.raises(CheckpointError, match="--weights raw or --weights average"):
        table_of(both)
    assert torch.equal(table_of(both, "average"), average[f"module.{TABLE}"])


def test_an_average_of_parameters_takes_the_buffers_of_the_raw_weights(run: Path):
    raw = published_state(seed=9)
    average = published_state(seed=10)
    for name in ("inner.H_init", "inner.L_init", TABLE):
        del average[name]
    torch.save({"model": raw, "ema": average}, run / WEIGHTS)
    model = model_from_published(run, SEQ_LEN, weights="average")
    assert torch.equal(model.high_init, raw["inner.H_init"])
    assert torch.equal(model.lm_head.weight, average["inner.lm_head.weight"])
    torch.save(raw, run / WEIGHTS)
    with pytest.raises(CheckpointError, match="holds only raw weights; omit --weights average"):
        model_from_published(run, SEQ_LEN, weights="average")


@pytest.mark.parametrize("name", ["step_100_ema", "model_ema.safetensors", "ema.pt"])
def test_of_a_raw_and_an_averaged_file_one_must_be_named(name: str, run: Path):
    (run / name).write_bytes(b"an average")
    with pytest.raises(CheckpointError, match=f"step_100 and {name}; choose one with --file"):
        model_from_published(run, SEQ_LEN)
    assert model_from_published(run, SEQ_LEN, WEIGHTS)


@pytest.mark.parametrize("saved_as", ["safetensors", "pickle"])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "last.ckpt"])
@pytest.mark.parametrize("settings", ["all_config.yaml", "config.yaml", "config.json", "W&B"])
def test_a_folder_holds_weights_and_settings_beside_them(
    name: str, settings: str, saved_as: str, tmp_path: Path
):
    state = published_state()
    if saved_as == "safetensors":
        save_file(state, tmp_path / name)
    else:
        torch.save(state, tmp_path / name)
    arch = architecture()
    if settings == "W&B":
        settings = "config.yaml"
        arch = {"desc": None, "value": arch}
    text = json.dumps(arch) if settings.endswith("json") else yaml.safe_dump({"arch": arch})
    (tmp_path / settings).write_text(text)
    assert torch.equal(model_from_published(tmp_path, SEQ_LEN).puzzle_table, state[TABLE])


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, "parameters"])
def test_numbers_of_other_widths_and_parameters_are_read(kind: Any, run: Path):
    state = published_state()
    if kind == "parameters":
        saved = {name: torch.nn.Parameter(tensor) for name, tensor in state.items()}
    else:
        saved = {name: tensor.to(kind) for name, tensor in state.items()}
    torch.save(saved, run / WEIGHTS)
    model = model_from_published(run, SEQ_LEN)
    expected = saved["inner.lm_head.weight"].detach().float()
    assert torch.equal(model.lm_head.weight, expected)


def test_the_last_step_is_the_one_with_the_largest_number(run: Path):
    later = published_state(seed=8)
    torch.save(later, run / "step_1000")
    (run / "step_100_all_preds.0").write_bytes(b"predictions, not weights")
    assert torch.equal(model_from_published(run, SEQ_LEN).puzzle_table, later[TABLE])


def contents(settings: object, prefix: str = "") -> dict[str, object]:
    """What a script of HRM-v2 saves."""
    named = {}
    for name, tensor in published_state().items():
        named[prefix + name.removeprefix("inner.")] = tensor
    return {"model_config": settings, "model_state_dict": named}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (contents("hidden 32"), "all_config.yaml cannot be read"),
        (contents({}), "lacks num_heads"),
        (contents({**architecture(), "seq_len": 81}), "for 81 tokens, but the puzzle has 16"),
        (contents({"name": "gpt"}), "name is 'gpt'.*only the modules hrm_act_v1, hrm, trm can be"),
        (contents({}, "encoder."), "'encoder.H_init' is not of a published model"),
        ({"network": {}, "epoch": 3}, "holds epoch, network; expected named tensors"),
    ],
)
def test_a_file_that_describes_no_published_model_is_rejected(
    tmp_path: Path, content: dict[str, object], reason: str
):
    torch.save(content, tmp_path / "hrm-v2.pt")
    with pytest.raises(CheckpointError, match=reason):
        model_from_published(tmp_path / "hrm-v2.pt", SEQ_LEN)


class Hub(SimpleHTTPRequestHandler):
    """A folder as the hub shows it, and a repository `org/loop` that leads to itself."""

    def send_head(self) -> Any:
        if not self.path.startswith("/org/loop"):
            return super().send_head()
        self.send_response(302)
        self.send_header("Location", self.path)
        return self.end_headers()

    def send_error(self, code: int, *_: object) -> None:
        self.send_response(code)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()

    def end_headers(self) -> None:
        self.send_header("ETag", f'"{Path(self.path).name}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        super().end_headers()

    def log_message(self, *_: object) -> None: ...


def test_a_hub_name_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("huggingface_hub", reason="the extra 'hub' is not installed")
    there = tmp_path / "org" / "name" / "resolve" / "main"
    there.mkdir(parents=True)
    state = write_published(there)
    (there / WEIGHTS).rename(there / "checkpoint")
    here = partial(Hub, directory=tmp_path)
    options = ["--puzzle", "sudoku-4x4", "--out", str(tmp_path / "out")]
    with ThreadingHTTPServer(("127.0.0.1", 0), here) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        for name in list(sys.modules):
            if name.partition(".")[0] == "huggingface_hub":
                monkeypatch.delitem(sys.modules, name)  # it reads its environment on import
        imported = invoked(import_main, "hub:org/name", *options)
        absent = invoked(import_main, "hub:org/other", *options)
        looped = invoked(import_main, "hub:org/loop", *options)
        server.shutdown()
    assert re.search(r"cannot fetch hub:org/other \(.*\); check the name", absent.output)
    assert re.search(r"cannot fetch hub:org/loop \(Exceeded .*redirects", looped.output)
    assert imported.exit_code == 0, imported.output
    model, meta = checkpoint.load(tmp_path / "out")
    assert torch.equal(model.puzzle_table, state[TABLE])
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


def cut() -> bytes:
    whole = io.BytesIO()
    torch.save(published_state(), whole)
    return whole.getvalue()[:-100]


def with_embedding(change: Callable[[Tensor], Tensor]) -> State:
    state = published_state()
    name = "inner.embed_tokens.embedding_weight"
    return {**state, name: change(state[name])}


def nested(tensor: Tensor) -> Tensor:
    rows = [tensor[0], tensor[1, :3]]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


HOSTILE = {
    "no weights": (WEIGHTS, None),
    "weights cut before their end": (WEIGHTS, cut()),
    "a plain pickle": (WEIGHTS, pickle.dumps(Hostile())),
    "code among weights": (WEIGHTS, {"model.inner.H_init": Hostile()}),
    "settings that are a list": (WEIGHTS, {"model_state_dict": {}, "model_config": [1]}),
    "nothing": (WEIGHTS, {}),
    "a page": (WEIGHTS, b"<!DOCTYPE html><title>Access denied</title>"),
    "a vector for tokens": (WEIGHTS, with_embedding(lambda tensor: tensor[0])),
    "not a number": (WEIGHTS, with_embedding(lambda tensor: tensor * torch.nan)),
    "sparse": (WEIGHTS, with_embedding(Tensor.to_sparse)),
    "nested": (WEIGHTS, with_embedding(nested)),
    "float8": (WEIGHTS, with_embedding(lambda tensor: tensor.to(torch.float8_e4m3fn))),
    "whole numbers": (WEIGHTS, with_embedding(lambda tensor: tensor.to(torch.int64))),
    "a name twice": (WEIGHTS, {**published_state(), **prefixed(published_state(), "model.")}),
    "on no device": (WEIGHTS, with_embedding(lambda tensor: tensor.to("meta"))),
    "larger than the file": (WEIGHTS, with_embedding(lambda _: torch.zeros(1).expand(1 << 20, 32))),
    "no settings": (SETTINGS, None),
    "another model": (SETTINGS, "arch: {name: recursive_reasoning.trm_singlez@TRM}"),
    "deep": (SETTINGS, "[" * 5000),
    "aliases without end": (SETTINGS, doubling_yaml()),
    "an object": (SETTINGS, "arch: !!python/object/apply:os.mkdir [was-run]"),
}


@pytest.mark.parametrize(("name", "content"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_run_is_rejected(
    name: str, content: object, run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(run)
    if content is None:
        (run / name).unlink()
    elif isinstance(content, str):
        (run / name).write_text(content)
    elif isinstance(content, bytes):
        (run / name).write_bytes(content)
    else:
        torch.save(content, run / name)
    told = rejected(import_main, run, "--puzzle", "sudoku-4x4", "--out", "out")
    assert "Re-running" not in told  # PyTorch's advice to run the code
    assert not (run / "out").exists()
    assert not (run / "was-run").exists()


@pytest.mark.parametrize("name", ["nowhere", "org/name", "folder"])
def test_what_is_no_file_of_weights_is_named_with_the_ways_out(name: str, run: Path):
    (run / "folder").mkdir()
    with pytest.raises(CheckpointError, match=f"{name} .*a file or hub:ORG/NAME|, but no weight"):
        model_from_published(run / name, SEQ_LEN)


def test_an_import_replaces_nothing_but_a_checkpoint(run: Path):
    held = {file.name: file.read_bytes() for file in run.iterdir()}
    told = rejected(import_main, run, "--puzzle", "sudoku-4x4", "--out", run)
    assert "already exists; remove it or choose another path" in told
    assert {file.name: file.read_bytes() for file in run.iterdir()} == held
    for _ in range(2):
        succeeded(import_main, run, "--puzzle", "sudoku-4x4", "--out", run / "my model")
    checkpoint.load(run / "my model")


NUM_ROWS = 1000  # rows of the Sudoku script's table. Its data set names one puzzle
FEW = ("--golden", "2", "--held-out", "8")


def write_script(file: Path, puzzle: str, table: tuple[int, int], **changes: Any) -> Path:
    """`checkpoint_final.pt` of a script: weights, and the optimizer's state.

    Its settings have these changes; None removes one.
    """
    kind = registry.get(puzzle)
    settings = architecture()
    del settings["name"], settings["loss"]
    settings["seq_len"] = kind.seq_len
    settings["vocab_size"] = kind.vocab_size
    num_ids, width = table
    settings["num_puzzle_identifiers"] = num_ids
    settings["puzzle_emb_ndim"] = width
    settings |= changes
    state = published_state(vocab=kind.vocab_size, table=table)
    for name in ("inner.H_init", "inner.L_init"):
        state[name] = state[name].bfloat16()
    moments = {"step": torch.tensor(1.0), "exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)}
    content = {
        "model_config": {name: value for name, value in settings.items() if value is not None},
        "model_state_dict": state,
        "optimizer_state_dict": {"state": {0: moments}, "param_groups": [{"lr": 1e-4}]},
        "step": 3200,
    }
    torch.save(content, file)
    return file


write_maze = partial(write_script, puzzle="maze-8x8", table=(1, 0))  # it has no puzzle table


def test_a_run_is_imported_by_its_final_checkpoint_with_defaults(tmp_path: Path):
    write_maze(tmp_path / "checkpoint_step_2000.pt")
    write_maze(tmp_path / "checkpoint_final.pt")
    model = model_from_published(tmp_path, 64)
    assert model.puzzle_table.shape == (1, 0)
    assert model.config.num_positions == 64
    defaults = dict.fromkeys(("expansion", "pos_encodings", "puzzle_emb_ndim"))
    file = write_maze(tmp_path / "checkpoint_final.pt", **defaults)
    config = model_from_published(file, 64).config
    assert (config.expansion, config.positions, config.puzzle_vector_size) == (4.0, "rope", 0)


@pytest.mark.parametrize(
    ("ndim", "reason"),
    [
        (WIDTH, r"puzzle_table: expected \(1, 32\), found None"),
        (-1, "puzzle_emb_ndim is -1"),
    ],
)
def test_a_named_table_must_be_in_the_file(tmp_path: Path, ndim: object, reason: str):
    file = write_maze(tmp_path / "checkpoint_final.pt", puzzle_emb_ndim=ndim)
    with pytest.raises(CheckpointError, match=reason):
        model_from_published(file, 64)


@pytest.fixture(scope="module")
def imported_sudoku(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From `hrm_sudoku_final.pt`: a table of 1,000 rows, whatever the data set names."""
    folder = tmp_path_factory.mktemp("sudoku")
    source = write_script(folder / "hrm_sudoku_final.pt", "sudoku-4x4", (NUM_ROWS, WIDTH))
    ended = succeeded(import_main, source, "--puzzle", "sudoku-4x4", "--out", folder / "imported")
    assert f"hrm-export {folder / 'imported'} --puzzle-ids 1" in ended.stdout
    return folder / "imported"


def test_a_large_table_exports_a_few_numbered_rows(imported_sudoku: Path, tmp_path: Path):
    out = tmp_path / "sudoku.bundle"
    succeeded(export_main, imported_sudoku, "--puzzle-ids", 3, "--out", out, *FEW)
    bundle = Bundle.open(out)
    model, _ = checkpoint.load(imported_sudoku)
    assert model.config.num_puzzle_ids == NUM_ROWS
    assert list(bundle.identifiers) == ["<blank>", "1", "2"]
    assert np.array_equal(bundle.puzzle_table, model.puzzle_table[:3].numpy())
    asked = map(bundle.puzzle.decode, questions_made(bundle.puzzle, 3).tokens_NT)
    replies = solve_many(asked, bundle=out)
    assert all(isinstance(reply, SolveAnswer) for reply in replies)


def test_rows_are_named_by_the_data_set(imported_sudoku: Path, tmp_path: Path):
    names = [f"sudoku-{number}" for number in range(1, NUM_ROWS)]
    data = data_set(tmp_path / "data", registry.get("sudoku-4x4"), 16, names=names)
    succeeded(export_main, imported_sudoku, "--data", data, "--out", tmp_path / "named", *FEW)
    named = Bundle.open(tmp_path / "named")
    assert len(named.identifiers) == NUM_ROWS
    assert named.identifiers[7] == "sudoku-7"


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
):
    monkeypatch.chdir(tmp_path)
    data_set(tmp_path / "data", registry.get("sudoku-4x4"), 16)
    assert saying in rejected(export_main, imported_sudoku, *options, *FEW)
