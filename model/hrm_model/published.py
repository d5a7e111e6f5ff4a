"""Reads checkpoints of the published HRM and TRM, and of their forks, into ours.

Three steps: the file is unwrapped to named tensors, their names become ours, and the settings
become an HRMConfig. A run's directory holds its weight file and its settings; a file may carry its
settings itself, as HRM-v2's does. PyTorch's restricted loader opens pickles: it rebuilds only
tensors and plain values, so a hostile file is rejected and never run.

Source of key names and shapes: sapientinc/HRM at 42410da; for TRM
SamsungSAILMontreal/TinyRecursiveModels at e7b6871; for HRM-v2 Hrishnugg/HRM at d41462e.
"""

import re
import reprlib  # shows only a few values: in YAML a short text can mean billions
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import safetensors.torch
import torch
import yaml
from pydantic import AfterValidator, BaseModel, Field, StrictBool, ValidationError
from torch import Tensor

from hrm_host.reading import plain_file, text_of
from hrm_model.checkpoint import CheckpointError, load_state
from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_model.hrm import HRM

Weights = Literal["raw", "average"]

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
SETTINGS_FILES = ("all_config.yaml", "config.yaml", "config.json")
"""Files beside the weights; the network's settings are under `arch`, or are the whole file."""
OWN_SETTINGS = ("model_config", "arch", "config", "hyper_parameters")
"""Keys under which a weight file carries its settings."""
SIGN = "H_cycles"  # the settings of every network have it
RAW = ("model_state_dict", "state_dict", "module", "model", "inner")
"""What trainers, DataParallel, loss head and ACT wrapper put around names."""
WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""What torch.compile, FSDP and activation checkpointing put anywhere into a name."""
AVERAGED = (
    "ema_state_dict",
    "ema_model_state_dict",
    "model_ema_state_dict",
    "ema_model",
    "model_ema",
    "ema_weights",
    "ema",
    "shadow",
)
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
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
MODULES = ("hrm_act_v1", "hrm", "trm")
"""Modules of the published code; `hrm` is HRM in TRM's repository."""
TRM_PREFIX = 16  # positions of a TRM's puzzle vector unless it is set
Count = Annotated[int, Field(ge=1, le=1 << 24)]
REFERENCE = re.compile(r"\$\{(?:\.|arch\.|\.\.arch\.)?(\w+)\}")


def _known(name: str) -> str:
    """The name "package.module@class", if its module is published."""
    module = _module_of(name)
    if name and module not in MODULES:
        raise ValueError(f"only the modules {', '.join(MODULES)} can be imported")
    return name


def _module_of(name: str) -> str:
    path, _, _ = name.partition("@")
    return path.rpartition(".")[2]


class Settings(BaseModel, extra="forbid", protected_namespaces=()):
    """The supported settings; any other may describe a network that this package lacks."""

    name: Annotated[str, AfterValidator(_known)] = ""
    num_heads: Count
    H_cycles: Count
    L_cycles: Count
    H_layers: int = 0  # unused in a TRM
    L_layers: Count
    halt_max_steps: Count
    expansion: float = 4.0
    pos_encodings: Literal["rope", "learned", "none"] = "rope"
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    # sizes that the tensors have too
    seq_len: int | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    puzzle_emb_ndim: Annotated[int, Field(ge=0)] | None = None
    num_puzzle_identifiers: int | None = None
    # TRM's
    mlp_t: StrictBool = False
    puzzle_emb_len: int | None = None
    no_ACT_continue: StrictBool | None = None
    # settings of forks that have one value here
    causal: Literal[False] = False
    pre_norm: Literal[False] = False
    use_qk_norm: Literal[False] = False
    # what transformers adds, and settings of training, which change nothing in float32
    model_type: Any = None
    architectures: Any = None
    torch_dtype: Any = None
    transformers_version: Any = None
    loss: Any = None
    batch_size: Any = None
    halt_exploration_prob: Any = None
    forward_dtype: Any = None


def model_from_published(
    source: Path, seq_len: int, weights_name: str | None = None, weights: Weights | None = None
) -> HRM:
    """Returns the network in float32 and evaluation mode, from a run's directory or a weight file.

    `seq_len` is 81 for Sudoku and 900 for Maze and ARC; rotary checkpoints do not record it.
    `weights` chooses if a file holds raw and averaged weights. Raises CheckpointError for other
    architectures and settings, missing or surplus tensors, and sizes that disagree.
    """
    file = _weight_file(source, weights_name)
    contents = _loaded(file)
    state = _state(file, contents, weights)
    described, settings = _settings(file, contents)
    try:
        config = _config(_read(settings), state, seq_len)
    except ValueError as error:
        raise CheckpointError(f"{described}: {error}") from error
    if config.puzzle_vector_size == 0 and "puzzle_table" not in state:
        state["puzzle_table"] = torch.zeros(1, 0)
    model = model_of(config)
    floats = {name: tensor.detach().float() for name, tensor in state.items()}
    load_state(model, floats, file)
    return model.eval()


def _weight_file(source: Path, name: str | None) -> Path:
    """The weight file: `source` itself, or the named or last one of a run's directory."""
    file = source
    if source.is_dir():
        file = _only_file(source) if name is None else source / name
    if not file.is_file():
        raise CheckpointError(f"{file} is no file; give a run's directory, a file or hub:ORG/NAME")
    return file


def _only_file(source: Path) -> Path:
    """The last weight file of a run's directory; raises CheckpointError if it may be another."""
    steps = [path for path in source.glob("step_*") if STEP.fullmatch(path.name)]
    steps.sort(key=lambda path: int(path.name.removeprefix("step_")), reverse=True)
    known = [source / name for name in WEIGHT_FILES]
    found = [path for path in (*steps, *known) if path.is_file()]
    if not found:
        held = ", ".join(sorted(path.name for path in source.iterdir())) or "nothing"
        names = ", ".join(("step_N", *WEIGHT_FILES))
        raise CheckpointError(
            f"{source} holds {held[:300]}, but no weight file, which is one of {names}; "
            "name another with --file, and join shards into one file before"
        )
    averaged = [path.name for path in source.iterdir() if AVERAGED_FILE.search(path.stem)]
    if averaged:
        raise CheckpointError(
            f"{source} holds {found[0].name} and {averaged[0]}; choose one with --file"
        )
    return found[0]


def _loaded(file: Path) -> Mapping[Any, Any]:
    """Returns what the file holds; a hostile file can make the loaders raise any error."""
    try:
        with plain_file(file).open("rb") as stream:
            if stream.read(9)[8:] == b"{":  # the length of a JSON, and the JSON
                return safetensors.torch.load_file(file)
            stream.seek(0)
            loaded = torch.load(stream, map_location="cpu", weights_only=True)
    except Exception as error:
        text = str(error) or type(error).__name__
        code = re.search(r"GLOBAL (\S+)", text)
        if code:
            reason = f"it would run {code[1]}"
        else:  # without PyTorch's advice to run code
            reason = text.rpartition("WeightsUnpickler error:")[2].strip().splitlines()[0]
        raise CheckpointError(
            f"{file} is not a plain file of tensors ({reason}); only checkpoints without code can "
            "be imported: download it again, or save its tensors alone"
        ) from error
    if isinstance(loaded, Mapping):
        return loaded
    return {type(loaded).__name__: loaded}


def _state(file: Path, contents: Mapping[Any, Any], weights: Weights | None) -> dict[str, Tensor]:
    """The chosen tensors under our names."""
    states: dict[Weights, dict[str, Tensor]] = {"raw": {}, "average": {}}
    num_bytes = 0
    for parts, tensor in _named(contents):
        kind, name = _our_name(parts)
        if name in states[kind]:
            raise CheckpointError(f"{file} holds {name} twice; save one model in a file")
        states[kind][name] = tensor
        num_bytes += tensor.numel() * tensor.element_size()
    if num_bytes > file.stat().st_size:
        raise CheckpointError(
            f"{file} is smaller than the tensors that it names; give the published weight file"
        )
    kinds: list[Weights] = [kind for kind, state in states.items() if state]
    if not kinds:
        keys = ", ".join(sorted(map(str, contents))) or "nothing"
        raise CheckpointError(
            f"{file} holds {keys[:300]}; expected named tensors, or a dict of them under one of "
            f"{', '.join((*RAW, *AVERAGED))}"
        )
    if weights is None and len(kinds) > 1:
        raise CheckpointError(
            f"{file} holds raw and averaged weights; choose with --weights raw or --weights average"
        )
    chosen = weights or kinds[0]
    if chosen not in kinds:
        raise CheckpointError(f"{file} holds only {kinds[0]} weights; omit --weights {chosen}")
    buffers = {name: states["raw"][name] for name in BUFFERS if name in states["raw"]}
    state = {**buffers, **states[chosen]}
    for name, tensor in state.items():
        _check(file, name, tensor)
    return state


def _named(
    contents: Mapping[Any, Any], parents: tuple[str, ...] = ()
) -> Iterator[tuple[list[str], Tensor]]:
    """Yield tensors with the parts of their names; keys of dicts around them come first.

    Counters, such as that of an average, and what is not around a model are left out.
    """
    for key, value in contents.items():
        parts = (*parents, *str(key).split("."))
        if isinstance(value, Mapping) and key in (*RAW, *AVERAGED):
            yield from _named(value, parts)
        elif isinstance(value, Tensor) and value.ndim > 0:
            yield list(parts), value


def _our_name(parts: list[str]) -> tuple[Weights, str]:
    """Which weights a tensor belongs to, and our name for it."""
    kind: Weights = "raw"
    parts = [part for part in parts if part not in WRAPPERS]
    while len(parts) > 1 and parts[0] in (*RAW, *AVERAGED):
        if parts.pop(0) in AVERAGED:
            kind = "average"
    name = ".".join(parts)
    if not NAMES.match(name):
        raise CheckpointError(
            f"tensor {name!r} is not of a published model; "
            "expected names such as H_level.* and lm_head.*"
        )
    if parts[0] in LEVELS:
        return kind, ".".join((LEVELS[parts[0]], *parts[1:]))
    return kind, RENAMED.get(name, name)


def _check(file: Path, name: str, tensor: Tensor) -> None:
    """Raises CheckpointError unless it is a dense tensor of finite numbers in this memory."""
    problem = None
    if tensor.is_nested or tensor.layout != torch.strided or tensor.device.type != "cpu":
        problem = "is not dense"
    elif tensor.dtype not in DTYPES:
        problem = f"holds {str(tensor.dtype).removeprefix('torch.')}"
    elif not tensor.isfinite().all():
        problem = "holds values that are not finite"
    if problem is not None:
        raise CheckpointError(
            f"{file}: {name} {problem}; give finite float32, float16 or bfloat16 tensors"
        )


def _settings(weights: Path, contents: Mapping[Any, Any]) -> tuple[Path, Mapping[str, Any]]:
    """The network's settings, in the weight file or beside it, and the file with them."""
    for key in OWN_SETTINGS:
        found = _network_in(contents.get(key))
        if found is not None and (key == OWN_SETTINGS[0] or SIGN in found):
            return weights, found
    files = [weights.parent / name for name in SETTINGS_FILES]
    file = next(filter(Path.is_file, files), files[0])
    try:
        text = text_of(file, most_bytes=1 << 18)  # the published settings have 2,000
        loaded = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{file} cannot be read ({reason}); give the run's own settings beside the weights"
        ) from error
    found = _network_in(loaded)
    if found is None:
        shown = reprlib.repr(loaded)[:200]
        raise CheckpointError(f"{file} describes {shown}; expected the settings under arch")
    return file, found


def _network_in(value: Any) -> Mapping[str, Any] | None:
    """The settings under `arch`, in W&B's files under `value` there, or the mapping itself."""
    for key in ("arch", "value"):
        if isinstance(value, Mapping):
            value = value.get(key, value)
    return value if isinstance(value, Mapping) else None


def _read(values: Mapping[str, Any]) -> Settings:
    """The settings, with the values that references such as ${.hidden_size} name."""
    resolved = dict(values)
    for name, value in values.items():
        reference = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if reference is not None:
            resolved[name] = values.get(reference[1], value)
    try:
        return Settings.model_validate(resolved)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = first["loc"][0]
        if first["type"] == "missing":
            raise ValueError(f"it lacks {name}; import a whole run") from None
        shown = reprlib.repr(first["input"])
        raise ValueError(
            f"{name} is {shown}, which is not understood ({first['msg']}); "
            "correct it, or remove it if it changes no answer"
        ) from None


def _config(settings: Settings, state: Mapping[str, Tensor], seq_len: int) -> HRMConfig:
    """The configuration that settings and tensors describe."""
    if settings.seq_len not in (None, seq_len):
        raise ValueError(
            f"it is for {settings.seq_len} tokens, but the puzzle has {seq_len}; "
            "choose the --puzzle it was trained on"
        )
    is_trm = _module_of(settings.name) == "trm"
    if not settings.name:
        is_trm = not any(name.startswith("high_level.") for name in state)
    if not is_trm and (settings.mlp_t or settings.puzzle_emb_len):
        raise ValueError("mlp_t and puzzle_emb_len are supported for a TRM only")
    if not is_trm and settings.H_layers < 1:
        raise ValueError(f"H_layers is {settings.H_layers}, but an HRM has a high level")
    prefix_len = settings.puzzle_emb_len
    if prefix_len is None:
        prefix_len = TRM_PREFIX if is_trm else 0
    has_halt_only = settings.no_ACT_continue
    if has_halt_only is None:
        has_halt_only = is_trm
    return HRMConfig(
        arch="trm" if is_trm else "hrm",
        blocks="mixer" if settings.mlp_t else "attention",
        halt_rule="q_halt" if has_halt_only else "difference",
        **_sizes(settings, state),
        seq_len=seq_len,
        num_heads=settings.num_heads,
        expansion=settings.expansion,
        high_cycles=settings.H_cycles,
        low_cycles=settings.L_cycles,
        high_layers=settings.L_layers if is_trm else settings.H_layers,
        low_layers=settings.L_layers,
        positions=settings.pos_encodings,
        rope_theta=settings.rope_theta,
        rms_norm_eps=settings.rms_norm_eps,
        max_segments=settings.halt_max_steps,
        puzzle_positions=prefix_len,
    )


def _sizes(settings: Settings, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The sizes of the tensors, with which the settings must agree."""
    vocab_size, hidden_size = _rows_of("embed_tokens", state)
    num_ids = 1
    vector_size = settings.puzzle_emb_ndim or 0
    if "puzzle_table" in state:
        num_ids, vector_size = _rows_of("puzzle_table", state)
    found = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_puzzle_identifiers": num_ids,
        "puzzle_emb_ndim": vector_size,
    }
    for name, size in found.items():
        stated = getattr(settings, name)
        if stated not in (None, size):
            raise ValueError(f"{name} is {stated}, but the tensors have {size}")
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_puzzle_ids": num_ids,
        "puzzle_vector_size": vector_size,
    }


def _rows_of(name: str, state: Mapping[str, Tensor]) -> tuple[int, ...]:
    """The shape of a table of vectors."""
    table = state.get(name)
    if table is None or table.ndim != 2:
        raise ValueError(f"{name} is absent or has no rows and columns; give a whole model")
    return tuple(table.shape)
