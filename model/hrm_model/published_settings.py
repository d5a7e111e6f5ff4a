"""The settings of published runs as an HRMConfig.

Every setting is in one of the tables below. Any other one is rejected by name, because it may
describe a network that this package does not compute.
"""

import re
import reprlib  # shows only a few values: in YAML a short text can mean billions
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from hrm_host.reading import text_of
from hrm_model.checkpoint import CheckpointError
from hrm_model.config import HRMConfig

MAX_SETTINGS_BYTES = 1 << 18  # the published settings have 2,000
SETTINGS_FILES = ("all_config.yaml", "config.yaml", "config.json")
"""Files beside the weights; the network's settings are under `arch`, or are the whole file."""
HRM_V2 = "model_config"
OWN_SETTINGS = (HRM_V2, "arch", "config", "hyper_parameters")
"""Keys under which a weight file carries its settings."""
ARCHITECTURES = {"hrm_act_v1": "hrm", "hrm": "hrm", "trm": "trm"}
"""Modules of the published code; `hrm` is HRM in TRM's repository."""
SIGN = "H_cycles"  # the settings of every network have it

COUNTS = {
    "num_heads": "num_heads",
    "H_cycles": "high_cycles",
    "L_cycles": "low_cycles",
    "H_layers": "high_layers",
    "L_layers": "low_layers",
    "halt_max_steps": "max_segments",
}
"""Whole numbers that are required, and their fields of HRMConfig."""
NUMBERS = ("expansion", "rope_theta", "rms_norm_eps")
"""Numbers, which HRMConfig calls alike; it has the published defaults."""
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_puzzle_identifiers": "num_puzzle_ids",
    "puzzle_emb_ndim": "puzzle_vector_size",
}
"""Sizes that the tensors also have, and their fields."""
WORDS = {
    **COUNTS,
    **SIZES,
    "pos_encodings": "positions",
    "puzzle_emb_len": "puzzle_positions",
}
"""The fields in an error of HRMConfig, in the words of the file."""
SWITCHES = ("mlp_t", "no_ACT_continue")
ONLY = {"causal": False, "pre_norm": False, "use_qk_norm": False}
"""Settings of forks that have one value here."""
OF_TRAINING = ("loss", "batch_size", "halt_exploration_prob", "forward_dtype")
"""Settings that do not change what the network computes in float32."""
KNOWN = {"name", "seq_len", *WORDS, *NUMBERS, *SWITCHES, *ONLY, *OF_TRAINING}
MOST_SHOWN = 200  # characters of a value that an error shows
TRM_PREFIX = 16  # positions of the puzzle's vector unless puzzle_emb_len is set
REFERENCE = re.compile(r"\$\{(?:\.|arch\.|\.\.arch\.)?(\w+)\}")


def settings_in(file: Path, contents: Mapping[Any, Any]) -> Mapping[str, Any] | None:
    """The network's settings in a weight file; None if it does not carry them."""
    for key in OWN_SETTINGS:
        if key not in contents:
            continue
        found = _network_in(contents[key])
        if found is None and key == HRM_V2:
            shown = reprlib.repr(contents[key])
            raise CheckpointError(f"{file} has the {key} {shown}; only a dict can be read")
        if found is not None and (key == HRM_V2 or SIGN in found):
            return found
    return None


def settings_beside(weights: Path) -> tuple[Path, Mapping[str, Any]]:
    """The settings file beside a weight file, and the network's settings in it."""
    files = [weights.parent / name for name in SETTINGS_FILES]
    file = next(filter(Path.is_file, files), files[0])
    try:
        loaded = yaml.safe_load(text_of(file, MAX_SETTINGS_BYTES))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{file} cannot be read ({reason}); it must be beside the weights"
        ) from error
    found = _network_in(loaded)
    if found is None:
        shown = reprlib.repr(loaded)[:MOST_SHOWN]
        raise CheckpointError(f"{file} describes {shown}; expected the settings under arch")
    return file, found


def _network_in(value: Any) -> Mapping[str, Any] | None:
    """The settings under `arch`, or else the value itself if it is a mapping."""
    if isinstance(value, Mapping):
        value = value.get("arch", value)
    return value if isinstance(value, Mapping) else None


def config_from(
    file: Path, settings: Mapping[str, Any], state: Mapping[str, Tensor], seq_len: int
) -> HRMConfig:
    """The configuration that settings and tensors describe; raises CheckpointError."""
    try:
        fields = _fields(_resolved(settings), state, seq_len)
        return HRMConfig(seq_len=seq_len, **fields)
    except ValueError as error:
        problem = str(error)
        for setting, field in WORDS.items():
            problem = re.sub(rf"\b{field}\b", setting, problem)
        raise CheckpointError(f"{file}: {problem}") from error


def _resolved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the values that references such as ${.hidden_size} name."""
    values = dict(settings)
    for name, value in settings.items():
        if not isinstance(value, str):
            continue
        reference = REFERENCE.fullmatch(value)
        if reference is not None:
            if reference[1] not in settings:
                raise ValueError(f"{name} is {value!r}, but {reference[1]} is missing")
            values[name] = settings[reference[1]]
    return values


def _fields(values: Mapping[str, Any], state: Mapping[str, Tensor], seq_len: int) -> dict[str, Any]:
    arch = _architecture(values, state)
    _require_known(values)
    if values.get("seq_len", seq_len) != seq_len:
        raise ValueError(
            f"it is for {values['seq_len']} tokens, but the puzzle has {seq_len}; "
            "choose the --puzzle it was trained on"
        )
    fields: dict[str, Any] = {"arch": arch, **_sizes(values, state)}
    counts = dict(COUNTS)
    if arch == "trm":
        del counts["H_layers"]  # unused there
    for setting, field in counts.items():
        fields[field] = _count(values, setting)
    for setting in NUMBERS:
        if setting in values:
            fields[setting] = _number(values, setting)
    if "pos_encodings" in values:
        fields["positions"] = values["pos_encodings"]
    if _flag(values, "no_ACT_continue", default=arch == "trm"):
        fields["halt_rule"] = "q_halt"
    if arch == "hrm":
        _reject_trm_only(values)
        return fields
    fields["high_layers"] = fields["low_layers"]
    fields["puzzle_positions"] = values.get("puzzle_emb_len", TRM_PREFIX)
    if _flag(values, "mlp_t", default=False):
        fields["blocks"] = "mixer"
    return fields


def _reject_trm_only(values: Mapping[str, Any]) -> None:
    for setting in ("mlp_t", "puzzle_emb_len"):
        if values.get(setting):
            shown = reprlib.repr(values[setting])
            raise ValueError(f"{setting} is {shown}, but only a TRM has it here")


def _architecture(values: Mapping[str, Any], state: Mapping[str, Tensor]) -> str:
    """ "hrm" or "trm": from the name "package.module@class", or else from the levels."""
    if "name" not in values:
        has_high = any(name.startswith("high_level.") for name in state)
        return "hrm" if has_high else "trm"
    path, _, _ = str(values["name"]).partition("@")
    module = path.rpartition(".")[2]
    if module not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        shown = reprlib.repr(values["name"])
        raise ValueError(f"name is {shown}; only the modules {names} can be imported")
    return ARCHITECTURES[module]


def _require_known(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        shown = reprlib.repr(value)
        if name not in KNOWN:
            raise ValueError(
                f"the setting {reprlib.repr(name)} ({shown}) is unknown here; "
                "remove it if it does not change the network"
            )
        if name in ONLY and value != ONLY[name]:
            raise ValueError(f"{name} is {shown}, but only {ONLY[name]} can be imported")


def _sizes(values: Mapping[str, Any], state: Mapping[str, Tensor]) -> dict[str, int]:
    """Sizes of the tensors; the settings may not disagree."""
    tables = [state.get(name) for name in ("embed_tokens", "puzzle_table")]
    tokens, puzzles = tables
    if tokens is None or any(table is not None and table.ndim != 2 for table in tables):
        raise ValueError("embed_tokens and puzzle_emb must be tables; import a whole run")
    found = {"vocab_size": tokens.shape[0], "hidden_size": tokens.shape[1]}
    if puzzles is None:
        found |= {"num_puzzle_identifiers": 1, "puzzle_emb_ndim": 0}
        if "puzzle_emb_ndim" in values:
            found["puzzle_emb_ndim"] = _count(values, "puzzle_emb_ndim")
    else:
        found |= {"num_puzzle_identifiers": puzzles.shape[0], "puzzle_emb_ndim": puzzles.shape[1]}
    for setting, size in found.items():
        if values.get(setting, size) != size:
            raise ValueError(f"{setting} is {values[setting]!r}, but the tensors have {size}")
    return {SIZES[setting]: size for setting, size in found.items()}


def _count(values: Mapping[str, Any], setting: str) -> int:
    value = values.get(setting)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if setting not in values:
        raise ValueError(f"it lacks {setting}; import a whole run")
    raise ValueError(f"{setting} is {reprlib.repr(value)}, but must be a whole number")


def _number(values: Mapping[str, Any], setting: str) -> float:
    """A number; YAML reads 1e-5 as text."""
    value = values[setting]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        return float(str(value))
    except ValueError:
        shown = reprlib.repr(value)
        raise ValueError(f"{setting} is {shown}, but must be a number") from None


def _flag(values: Mapping[str, Any], setting: str, *, default: bool) -> bool:
    value = values.get(setting, default)
    if not isinstance(value, bool):
        raise ValueError(f"{setting} is {reprlib.repr(value)}, but must be true or false")
    return value
