"""Reads checkpoints of the published HRM and TRM (`step_N` or `checkpoint` beside `all_config.yaml`) into ours.

A file that carries its settings (`model_config` beside `model_state_dict`, under the published names) needs no
`all_config.yaml`. The weight file is a pickle. It is opened with PyTorch's restricted loader, which rebuilds tensors
and plain values and nothing else, so that a hostile file is refused rather than run. Key names and shapes:
sapientinc/HRM at 42410da, of TRM SamsungSAILMontreal/TinyRecursiveModels at e7b6871.
"""

import re
import reprlib  # shows a few values alone: in YAML a short text can mean billions
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

PREFIX = re.compile(r"^(_orig_mod\.)?(model\.)?(inner\.)?")  # of torch.compile, the loss head and the ACT wrapper
RENAMED = {
    "H_init": "high_init",
    "L_init": "low_init",
    "embed_tokens.embedding_weight": "embed_tokens",
    "embed_pos.embedding_weight": "embed_positions",
    "puzzle_emb.weights": "puzzle_table",
}
ARCHITECTURES = {"hrm_act_v1": "hrm", "trm": "trm"}
LEVELS = {"H_level": "high_level", "L_level": "low_level"}
NAMES = re.compile(r"(H_init|L_init|embed_tokens|embed_pos|puzzle_emb|lm_head|q_head|H_level|L_level)(\.|$)")
SETTINGS = "all_config.yaml"
MAX_SETTINGS_BYTES = 1 << 18  # the published ones have 2,000


def model_from_published(source: Path, seq_len: int, weights_name: str | None = None) -> HRM:
    """The network in float32 and evaluation mode, from the directory of a run or from a weight file in it.

    `seq_len` must be given, since rotary checkpoints do not record it (81 Sudoku, 900 Maze and ARC). Refuses what the
    fact sheet does not describe: other architectures, missing or surplus tensors, sizes that disagree.
    """
    directory = source if source.is_dir() else source.parent
    if not source.is_dir():
        file = source
    elif weights_name is None:
        steps = [path for path in directory.glob("step_*") if re.fullmatch(r"step_\d+", path.name)]
        file = max(steps, key=lambda path: int(path.name[5:]), default=directory / "checkpoint")
        if not file.is_file():
            raise CheckpointError(f"{directory} holds neither step_N nor checkpoint; give a published run's directory")
    else:
        file = directory / weights_name
    tensors, arch = _opened(file)
    state = {_our_name(name): tensor for name, tensor in tensors.items()}
    config = SETTINGS if arch is None else file.name
    model = HRM(_config(directory / config, _arch_of(directory / config) if arch is None else arch, state, seq_len))
    load_state(model, {name: tensor.float() for name, tensor in state.items()}, directory)
    return model.eval()


def _opened(file: Path) -> tuple[Mapping[str, Tensor], Mapping[str, Any] | None]:
    """The tensors, and the settings of a file that has its own."""
    arch = None
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile file can make the loader raise anything
        code = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it would run {code[1]}" if code else (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{file} is not a plain file of tensors ({reason}); only checkpoints without code are imported"
        ) from error
    if isinstance(loaded, Mapping) and "model_state_dict" in loaded:
        loaded, arch = loaded["model_state_dict"], loaded.get("model_config")
        if not isinstance(arch, Mapping):
            raise CheckpointError(f"{file} has the model_config {reprlib.repr(arch)}; only a dict can be read")
    if not isinstance(loaded, Mapping) or not all(map(_is_plain, loaded.items())):
        raise CheckpointError(f"{file} holds something other than named tensors; give the published weight file")
    if sum(tensor.numel() * tensor.element_size() for tensor in loaded.values()) > file.stat().st_size:
        raise CheckpointError(f"{file} is smaller than the tensors that it names; give the published weight file")
    if odd := next((name for name, tensor in loaded.items() if not tensor.isfinite().all()), None):
        raise CheckpointError(f"{file} has values in {odd} that are no finite numbers; import an earlier step")
    return loaded, None if arch is None else {"name": "hrm_act_v1", **arch}


def _is_plain(named: tuple[object, object]) -> bool:
    """A name and a tensor of real numbers that lie in memory as they are."""
    name, tensor = named
    if not (isinstance(name, str) and isinstance(tensor, Tensor)):
        return False
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.is_floating_point()


def _our_name(name: str) -> str:
    short = PREFIX.sub("", name)
    if not NAMES.match(short):
        raise CheckpointError(f"tensor {name!r} is not of a published model; expected such as H_level.* and lm_head.*")
    level, _, rest = short.partition(".")
    return f"{LEVELS[level]}.{rest}" if level in LEVELS else RENAMED.get(short, short)


def _arch_of(file: Path) -> Any:
    try:
        return yaml.safe_load(text_of(file, MAX_SETTINGS_BYTES))["arch"]
    except (OSError, ValueError, RecursionError, yaml.YAMLError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{file} cannot be read ({reason}); it must stand beside the weights") from error


def _config(file: Path, arch: Any, state: Mapping[str, Tensor], seq_len: int) -> HRMConfig:
    module = str(arch.get("name")).partition("@")[0] if isinstance(arch, Mapping) else ""
    kind = ARCHITECTURES.get(module.rpartition(".")[2])
    if kind is None:
        raise CheckpointError(f"{file} describes {reprlib.repr(arch)}; only {' and '.join(ARCHITECTURES)} are imported")
    if (stated := arch.get("seq_len", seq_len)) != seq_len:
        raise CheckpointError(f"{file} is of {stated} tokens where the puzzle has {seq_len}; choose its own --puzzle")
    try:
        vocab_size, hidden_size = state["embed_tokens"].shape
        table = state.get("puzzle_table", torch.empty(1, 0))
        return HRMConfig(
            vocab_size=vocab_size,
            seq_len=seq_len,
            num_puzzle_ids=table.shape[0],
            puzzle_vector_size=table.shape[1],
            hidden_size=hidden_size,
            num_heads=arch["num_heads"],
            expansion=arch["expansion"],
            high_cycles=arch["H_cycles"],
            low_cycles=arch["L_cycles"],
            high_layers=arch["H_layers" if kind == "hrm" else "L_layers"],
            low_layers=arch["L_layers"],
            positions=arch["pos_encodings"],
            rope_theta=arch.get("rope_theta", 10000.0),
            rms_norm_eps=arch.get("rms_norm_eps", 1e-5),
            max_segments=arch["halt_max_steps"],
            **(_of_trm(arch) if kind == "trm" else {}),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"the published checkpoint lacks or misstates {error}; import a whole run") from error


def _of_trm(arch: Mapping[str, Any]) -> dict[str, Any]:
    """What a TRM has and an HRM has not; its mixers ignore rotary positions."""
    told = {"arch": "trm", "halt_rule": "q_halt", "puzzle_positions": arch.get("puzzle_emb_len", 16)}
    return {**told, "blocks": "mixer" if arch.get("mlp_t") else "attention"}
