"""Reads checkpoints of the published HRM and TRM, and of their forks, into ours.

Three steps: the file is unwrapped to named tensors, their names become ours, and the settings
become an HRMConfig (`published_settings.py`). A run's directory holds its weight file and its
settings; a file may carry its settings itself, as HRM-v2's does. PyTorch's restricted loader opens
pickles: it rebuilds only tensors and plain values, so a hostile file is rejected and never run.

Source of key names and shapes: sapientinc/HRM at 42410da; for TRM
SamsungSAILMontreal/TinyRecursiveModels at e7b6871; for HRM-v2 Hrishnugg/HRM at d41462e.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from hrm_model.checkpoint import CheckpointError, load_state
from hrm_model.families import model_of
from hrm_model.hrm import HRM
from hrm_model.published_settings import config_from, settings_beside, settings_in

Weights = Literal["raw", "average"]
Tensors = Mapping[str, Tensor]

STEP = re.compile(r"step_\d+")
WEIGHT_FILES = (
    "checkpoint",
    "checkpoint_final.pt",  # HRM-v2
    "model.safetensors",
    "pytorch_model.bin",
    "last.ckpt",  # Lightning
)
"""Names besides `step_N`."""
AVERAGED_FILE = re.compile(r"(?<![a-z])ema(?![a-z])")
PLACES: dict[Weights, tuple[str, ...]] = {
    "raw": ("model_state_dict", "state_dict", "model", "module"),
    "average": (
        "ema_state_dict",
        "ema_model_state_dict",
        "model_ema_state_dict",
        "ema_model",
        "model_ema",
        "ema_weights",
        "ema",
        "shadow",
    ),
}
"""Keys under which trainers save tensors; also the first part of a tensor's name."""
PREFIX = re.compile(r"^((_orig_mod|module|model|inner)\.)+")
"""What torch.compile, DataParallel, the loss head and the ACT wrapper put before a name."""
RENAMED = {
    "H_init": "high_init",
    "L_init": "low_init",
    "embed_tokens.embedding_weight": "embed_tokens",
    "embed_pos.embedding_weight": "embed_positions",
    "puzzle_emb.weights": "puzzle_table",
}
BUFFERS = ("high_init", "low_init", "puzzle_table")
"""Not parameters, so an average may lack them."""
LEVELS = {"H_level": "high_level", "L_level": "low_level"}
NAMES = re.compile(
    r"(H_init|L_init|embed_tokens|embed_pos|puzzle_emb|lm_head|q_head|H_level|L_level)(\.|$)"
)
COUNTER = "n_averaged"  # of torch.optim.swa_utils.AveragedModel
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class _Contents(NamedTuple):
    """A weight file: its tensors by kind of weights, and its settings if it has its own."""

    tensors: dict[Weights, dict[str, Any]]
    settings: Mapping[str, Any] | None


def model_from_published(
    source: Path, seq_len: int, weights_name: str | None = None, weights: Weights | None = None
) -> HRM:
    """Returns the network in float32 and evaluation mode, from a run's directory or a weight file.

    `seq_len` is 81 for Sudoku and 900 for Maze and ARC; rotary checkpoints do not record it.
    `weights` chooses if a file holds raw and averaged weights. Raises CheckpointError for other
    architectures and settings, missing or surplus tensors, and sizes that disagree.
    """
    file = _weight_file(source, weights_name)
    contents = _contents(file)
    state = _state(file, contents.tensors, weights)
    settings = contents.settings
    described = file
    if settings is None:
        described, settings = settings_beside(file)
    config = config_from(described, settings, state, seq_len)
    if config.puzzle_vector_size == 0 and "puzzle_table" not in state:
        state["puzzle_table"] = torch.zeros(1, 0)
    model = model_of(config)
    floats = {name: tensor.detach().float() for name, tensor in state.items()}
    load_state(model, floats, file)
    return model.eval()


def _weight_file(source: Path, name: str | None) -> Path:
    """The weight file: `source` itself, or the named or last one of a run's directory."""
    if not source.is_dir():
        return source
    if name is not None:
        return source / name
    steps = [path for path in source.glob("step_*") if STEP.fullmatch(path.name)]
    steps.sort(key=lambda path: int(path.name.removeprefix("step_")), reverse=True)
    known = [source / name for name in WEIGHT_FILES]
    found = [path for path in (*steps, *known) if path.is_file()]
    averaged = [path for path in source.iterdir() if AVERAGED_FILE.search(path.stem)]
    if averaged and found:
        raise CheckpointError(
            f"{source} holds {found[0].name} and {averaged[0].name}; choose one with --file"
        )
    if not found:
        names = ", ".join(("step_N", *WEIGHT_FILES))
        raise CheckpointError(
            f"{source} holds no weight file; expected one of {names}, or name another with --file"
        )
    return found[0]


def _contents(file: Path) -> _Contents:
    """Unwraps a file: finds its tensors at its top or under the keys that trainers use."""
    loaded = _loaded(file)
    if not isinstance(loaded, Mapping):
        raise _without_tensors(file, [type(loaded).__name__])
    tensors: dict[Weights, dict[str, Any]] = {"raw": {}, "average": {}}
    for key, value in loaded.items():
        if isinstance(value, Tensor):
            kind, name = _kind_and_name(str(key))
            tensors[kind][name] = value
            continue
        for kind, places in PLACES.items():
            if key in places:
                _add_nested(file, value, kind, tensors)
    if not any(tensors.values()):
        raise _without_tensors(file, loaded)
    return _Contents(tensors=tensors, settings=settings_in(file, loaded))


def _add_nested(
    file: Path, value: object, kind: Weights, tensors: dict[Weights, dict[str, Any]]
) -> None:
    """Adds the tensors of a value; an average may be one level deeper, beside its decay."""
    if not isinstance(value, Mapping):
        raise _without_tensors(file, [f"{kind} weights of type {type(value).__name__}"])
    inner = [value[key] for key in (*PLACES["raw"], "shadow") if key in value]
    deeper = [one for one in inner if isinstance(one, Mapping)]
    if kind == "average" and deeper:
        value = deeper[0]
    for key, tensor in value.items():
        found = kind
        name = str(key)
        if kind == "raw":
            found, name = _kind_and_name(name)
        tensors[found][name] = tensor


def _kind_and_name(name: str) -> tuple[Weights, str]:
    """Which weights a tensor belongs to, by the first part of its name, and the rest of it."""
    first, _, rest = name.partition(".")
    if rest and first in PLACES["average"]:
        return "average", rest
    return "raw", name


def _loaded(file: Path) -> Any:
    """Returns what the file holds; a hostile file can make the loaders raise any error."""
    if file.suffix == ".safetensors":
        try:
            return safetensors.torch.load_file(file)
        except (OSError, SafetensorError, ValueError, KeyError, AttributeError) as error:
            raise _unreadable(file, str(error)) from error
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        if code:
            reason = f"it would run {code[1]}"
        else:
            reason = str(error) or type(error).__name__
        raise _unreadable(file, reason) from error


def _unreadable(file: Path, reason: str) -> CheckpointError:
    first_line = reason.splitlines()[0]
    return CheckpointError(
        f"{file} is not a plain file of tensors ({first_line}); "
        "only checkpoints without code can be imported"
    )


def _without_tensors(file: Path, keys: Iterable[object]) -> CheckpointError:
    found = ", ".join(sorted(map(str, keys))[:10]) or "nothing"
    places = ", ".join((*PLACES["raw"], *PLACES["average"]))
    return CheckpointError(
        f"{file} holds {found[:500]}; expected named tensors, or a dict of them under {places}"
    )


def _state(
    file: Path, tensors: Mapping[Weights, Mapping[str, Any]], weights: Weights | None
) -> dict[str, Tensor]:
    """The chosen tensors under our names, all plain and finite."""
    kinds: list[Weights] = [kind for kind in PLACES if tensors[kind]]
    if weights is None and len(kinds) > 1:
        raise CheckpointError(
            f"{file} holds raw and averaged weights; choose with --weights raw or --weights average"
        )
    chosen = weights or kinds[0]
    if chosen not in kinds:
        raise CheckpointError(f"{file} holds only {kinds[0]} weights; omit --weights {chosen}")
    state = _renamed(file, tensors[chosen])
    if chosen == "average" and "raw" in kinds:
        raw = _renamed(file, tensors["raw"])
        for name in BUFFERS:
            if name in raw:
                state.setdefault(name, raw[name])
    _check_values(file, state)
    return state


def _renamed(file: Path, tensors: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if name == COUNTER:
            continue
        ours = _our_name(name)
        if ours in state:
            raise CheckpointError(
                f"{file} holds {name!r} twice under different prefixes; save one model in a file"
            )
        state[ours] = tensor
    return state


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


def _check_values(file: Path, tensors: Mapping[str, Any]) -> None:
    num_bytes = 0
    for name, tensor in tensors.items():
        _require_plain(file, name, tensor)
        num_bytes += tensor.numel() * tensor.element_size()
    if num_bytes > file.stat().st_size:
        raise CheckpointError(
            f"{file} is smaller than the tensors that it names; give the published weight file"
        )
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise CheckpointError(
                f"{file} has values in {name} that are not finite; import an earlier step"
            )


def _require_plain(file: Path, name: str, tensor: object) -> None:
    """Raises CheckpointError unless it is a dense tensor of real numbers in this memory."""
    if not isinstance(tensor, Tensor):
        problem = f"it is a {type(tensor).__name__}"
    elif tensor.is_nested or tensor.layout != torch.strided:
        problem = "it is not dense"
    elif tensor.device.type != "cpu":
        problem = "it has no values"
    elif tensor.dtype not in DTYPES:
        problem = f"its numbers are {str(tensor.dtype).removeprefix('torch.')}"
    else:
        return
    raise CheckpointError(
        f"{file} cannot be imported with {name} as it is ({problem}); "
        "save plain tensors of float32, float16 or bfloat16"
    )
