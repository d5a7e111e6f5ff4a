"""Reads checkpoints of the published HRM and TRM into ours.

A published run holds `step_N` or `checkpoint` beside `all_config.yaml`. A file that carries its
settings (`model_config` beside `model_state_dict`, with the published names) needs no
`all_config.yaml`; the scripts of HRM-v2 write such files. The weight file is a pickle. PyTorch's
restricted loader opens it: it rebuilds only tensors and plain values, so a hostile file is rejected
and never run.

Source of key names and shapes: sapientinc/HRM at 42410da; for TRM
SamsungSAILMontreal/TinyRecursiveModels at e7b6871; for HRM-v2 Hrishnugg/HRM at d41462e.
"""

import operator
import re
import reprlib  # shows only a few values: in YAML a short text can mean billions
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from hrm_host.reading import text_of
from hrm_model.checkpoint import CheckpointError, load_state
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM

# Prefixes of torch.compile, the loss head and the ACT wrapper.
PREFIX = re.compile(r"^(_orig_mod\.)?(model\.)?(inner\.)?")
STEP = re.compile(r"step_\d+")
RENAMED = {
    "H_init": "high_init",
    "L_init": "low_init",
    "embed_tokens.embedding_weight": "embed_tokens",
    "embed_pos.embedding_weight": "embed_positions",
    "puzzle_emb.weights": "puzzle_table",
}
ARCHITECTURES = {"hrm_act_v1": "hrm", "trm": "trm"}
LEVELS = {"H_level": "high_level", "L_level": "low_level"}
NAMES = re.compile(
    r"(H_init|L_init|embed_tokens|embed_pos|puzzle_emb|lm_head|q_head|H_level|L_level)(\.|$)"
)
OWN_SETTINGS = {"name": "hrm_act_v1", "expansion": 4.0, "pos_encodings": "rope"}
"""Defaults of HRM-v2's `HRMACTv1Config`, for files that carry their settings."""
WEIGHT_FILES = ("checkpoint", "checkpoint_final.pt")
"""Names besides `step_N`; HRM-v2 writes the second one."""
SETTINGS = "all_config.yaml"
MAX_SETTINGS_BYTES = 1 << 18  # the published settings have 2,000


def model_from_published(source: Path, seq_len: int, weights_name: str | None = None) -> HRM:
    """Returns the network in float32 and evaluation mode, from a run's directory or a weight file.

    `seq_len` is 81 for Sudoku and 900 for Maze and ARC; rotary checkpoints do not record it. Raises
    CheckpointError for other architectures, missing or surplus tensors, and sizes that disagree.
    """
    file = _weight_file(source, weights_name)
    directory = source
    if not source.is_dir():
        directory = source.parent
    tensors, arch = _opened(file)
    settings = file
    if arch is None:
        settings = directory / SETTINGS
        arch = _arch_of(settings)
    state = {_our_name(name): tensor for name, tensor in tensors.items()}
    config = _config(settings, arch, state, seq_len)
    if config.puzzle_vector_size == 0 and "puzzle_table" not in state:
        state["puzzle_table"] = torch.zeros(1, 0)
    model = HRM(config)
    floats = {name: tensor.float() for name, tensor in state.items()}
    load_state(model, floats, directory)
    return model.eval()


def _weight_file(source: Path, name: str | None) -> Path:
    """The weight file: `source` itself, or the named or last one of a run's directory."""
    if not source.is_dir():
        return source
    if name is not None:
        return source / name
    steps = [path for path in source.glob("step_*") if STEP.fullmatch(path.name)]
    if steps:
        return max(steps, key=lambda path: int(path.name.removeprefix("step_")))
    for known in WEIGHT_FILES:
        file = source / known
        if file.is_file():
            return file
    names = " nor ".join(WEIGHT_FILES)
    raise CheckpointError(
        f"{source} holds neither step_N nor {names}; give a published run's directory"
    )


def _opened(file: Path) -> tuple[Mapping[str, Tensor], Mapping[str, Any] | None]:
    """Returns the tensors, and the settings if the file has its own."""
    loaded = _unpickled(file)
    arch = None
    if isinstance(loaded, Mapping) and "model_state_dict" in loaded:
        arch = loaded.get("model_config")
        loaded = loaded["model_state_dict"]
        if not isinstance(arch, Mapping):
            raise CheckpointError(
                f"{file} has the model_config {reprlib.repr(arch)}; only a dict can be read"
            )
        arch = {**OWN_SETTINGS, **arch}
    if not isinstance(loaded, Mapping) or not all(map(_is_plain, loaded.items())):
        raise CheckpointError(
            f"{file} holds something other than named tensors; give the published weight file"
        )
    _check_values(file, loaded)
    return loaded, arch


def _unpickled(file: Path) -> Any:
    """Returns what the restricted loader reads; a hostile file can make it raise any error."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        if code:
            reason = f"it would run {code[1]}"
        else:
            reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{file} is not a plain file of tensors ({reason}); "
            "only checkpoints without code can be imported"
        ) from error


def _check_values(file: Path, tensors: Mapping[str, Tensor]) -> None:
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if num_bytes > file.stat().st_size:
        raise CheckpointError(
            f"{file} is smaller than the tensors that it names; give the published weight file"
        )
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise CheckpointError(
                f"{file} has values in {name} that are not finite; import an earlier step"
            )


def _is_plain(named: tuple[object, object]) -> bool:
    """Whether the item is a name with a dense tensor of real numbers."""
    name, tensor = named
    if not (isinstance(name, str) and isinstance(tensor, Tensor)):
        return False
    is_dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return is_dense and tensor.is_floating_point()


def _our_name(name: str) -> str:
    short = PREFIX.sub("", name)
    if not NAMES.match(short):
        raise CheckpointError(
            f"tensor {name!r} is not of a published model; "
            "expected names such as H_level.* and lm_head.*"
        )
    level, _, rest = short.partition(".")
    if level in LEVELS:
        return f"{LEVELS[level]}.{rest}"
    return RENAMED.get(short, short)


def _arch_of(file: Path) -> Any:
    try:
        return yaml.safe_load(text_of(file, MAX_SETTINGS_BYTES))["arch"]
    except (OSError, ValueError, RecursionError, yaml.YAMLError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{file} cannot be read ({reason}); it must be beside the weights"
        ) from error


def _config(file: Path, arch: Any, state: Mapping[str, Tensor], seq_len: int) -> HRMConfig:
    kind = _kind_of(arch)
    if kind is None:
        names = " and ".join(ARCHITECTURES)
        raise CheckpointError(
            f"{file} describes {reprlib.repr(arch)}; only {names} can be imported"
        )
    described = arch.get("seq_len", seq_len)
    if described != seq_len:
        raise CheckpointError(
            f"{file} is for {described} tokens, but the puzzle has {seq_len}; "
            "choose the --puzzle it was trained on"
        )
    try:
        sizes = _sizes(arch, state)
        if kind == "trm":
            sizes |= _sizes_of_trm(arch)
        else:
            sizes["high_layers"] = arch["H_layers"]
        return HRMConfig(seq_len=seq_len, **sizes)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(
            f"the published checkpoint lacks or misstates {error}; import a whole run"
        ) from error


def _kind_of(arch: Any) -> str | None:
    """The architecture that a "package.module@class" names."""
    if not isinstance(arch, Mapping):
        return None
    path, _, _ = str(arch.get("name")).partition("@")
    _, _, module = path.rpartition(".")
    return ARCHITECTURES.get(module)


def _sizes(arch: Mapping[str, Any], state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The fields of HRMConfig that an HRM and a TRM share."""
    vocab_size, hidden_size = state["embed_tokens"].shape
    num_puzzle_ids = 1
    puzzle_vector_size = operator.index(arch.get("puzzle_emb_ndim", 0))
    if "puzzle_table" in state:
        num_puzzle_ids, puzzle_vector_size = state["puzzle_table"].shape
    return {
        "vocab_size": vocab_size,
        "num_puzzle_ids": num_puzzle_ids,
        "puzzle_vector_size": puzzle_vector_size,
        "hidden_size": hidden_size,
        "num_heads": arch["num_heads"],
        "expansion": arch["expansion"],
        "high_cycles": arch["H_cycles"],
        "low_cycles": arch["L_cycles"],
        "low_layers": arch["L_layers"],
        "positions": arch["pos_encodings"],
        "rope_theta": arch.get("rope_theta", 10000.0),
        "rms_norm_eps": arch.get("rms_norm_eps", 1e-5),
        "max_segments": arch["halt_max_steps"],
    }


def _sizes_of_trm(arch: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in which a TRM differs. Its mixers ignore rotary positions."""
    blocks = "attention"
    if arch.get("mlp_t"):
        blocks = "mixer"
    return {
        "arch": "trm",
        "halt_rule": "q_halt",
        "puzzle_positions": arch.get("puzzle_emb_len", 16),
        "high_layers": arch["L_layers"],
        "blocks": blocks,
    }
