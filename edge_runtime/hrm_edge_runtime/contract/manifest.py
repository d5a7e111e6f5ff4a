"""A bundle's manifest.

It is untrusted: unknown keys, unknown versions and names that lead out of the directory are errors.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from hrm_edge_runtime.contract.errors import Error, words_for
from hrm_edge_runtime.contract.halting import HaltingPolicy, PolicyKind
from hrm_host import atomic
from hrm_host.atomic import sha256_of
from hrm_host.reading import is_printable, object_of, printable

FORMAT_VERSION = 2
MANIFEST_NAME = "manifest.json"
CARD_NAME = "README.md"
MAX_MANIFEST_BYTES = 1 << 20


def is_plain_name(name: str) -> bool:
    """Whether a file name stays inside its directory and needs no quotes."""
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", name) is not None


def _inside(name: str) -> str:
    if not is_plain_name(name):
        raise ValueError(f"{name!r} is not a plain file name, so it could lead out of the bundle")
    return name


def _legible(text: str) -> str:
    if not is_printable(text):
        shown = printable(text[:200])
        raise ValueError(f"'{shown}' holds control or direction characters")
    return text


FileName = Annotated[str, AfterValidator(_inside)]
Text = Annotated[str, AfterValidator(_legible)]
"""Text that logs, pages and terminals show."""
Size = Annotated[int, Field(gt=0, lt=1 << 31)]
Threshold = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Graphs = dict[Text, FileName]
"""A file for each precision, as {"fp32": "step.fp32.onnx"}."""
AttemptKind = Literal["symmetries", "hypotheses"]
"""How further attempts at a puzzle differ. The export measures which kind pays."""


class BundleError(Error, ValueError):
    """A bundle cannot be opened; the text is one sentence with the fault and the remedy."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FileEntry(_Strict):
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Field(gt=0)]


class Halting(_Strict):
    """The rule under which the bundle was measured."""

    policy: PolicyKind
    threshold: Threshold = 0.0


class CurvePoint(_Strict):
    """The learned rule at one threshold: its mean segments and shares of puzzles solved.

    `exact` is the share solved as labeled, `proven` the share with a proof.
    """

    threshold: Threshold
    exact: Share
    proven: Share
    mean_segments: Annotated[float, Field(ge=1, allow_inf_nan=False)]


class HaltingCurve(_Strict):
    """What halting early costs and saves on held-out puzzles in one precision.

    `threshold` is the one chosen from these points.
    """

    num_puzzles: Size
    threshold: Threshold
    points: Annotated[list[CurvePoint], Field(min_length=1)]


class TaskResults(_Strict):
    """How a model did on the held-out questions of its tasks (ARC) when it was exported.

    `right` names the tasks whose questions were all answered right with `attempts` attempts. Those
    that one attempt also answers come first. `generated` names the tasks that were also trained on
    generated examples.
    """

    attempts: Size
    num_tasks: Size
    right: list[Text]
    generated: list[Text] = []

    @model_validator(mode="after")
    def _only_some_of_the_tasks(self) -> "TaskResults":
        if len(set(self.right)) != len(self.right):
            raise ValueError("right names a task twice")
        if len(self.right) > self.num_tasks:
            raise ValueError(f"right names {len(self.right)} of {self.num_tasks} tasks")
        return self


class Manifest(_Strict):
    """What `manifest.json` holds.

    `num_positions` is prefix + `seq_len`. `precisions` names the step graph of each precision.
    `cpu_graphs` are forms that ONNX Runtime runs faster on a CPU; the form for INT8 has weights of
    seven bits. `unrolled` are whole loops in one graph. `curves` are the costs of halting early.
    `undecided` states for a precision why its loss against float32 is not known well enough.
    """

    format_version: Literal[2] = FORMAT_VERSION
    name: Annotated[Text, Field(min_length=1, max_length=200)]
    puzzle: Annotated[Text, Field(min_length=1, max_length=200)]
    seq_len: Size
    vocab_size: Size
    num_positions: Size
    hidden_size: Size
    puzzle_vector_size: Annotated[int, Field(ge=0, lt=1 << 31)]
    num_puzzle_ids: Size
    max_segments: Size
    halting: Halting
    precisions: Annotated[Graphs, Field(min_length=1)]
    cpu_graphs: Graphs = {}
    unrolled: Graphs = {}
    undecided: dict[Text, Text] = {}
    attempt_kind: AttemptKind = "symmetries"
    curves: dict[Text, HaltingCurve] = {}
    held_out_tasks: TaskResults | None = None
    files: dict[FileName, FileEntry]
    provenance: dict[Text, Text | int | float] = {}

    @model_validator(mode="after")
    def _only_known_precisions(self) -> "Manifest":
        by_precision: dict[str, Iterable[str]] = {
            "cpu_graphs": self.cpu_graphs,
            "unrolled": self.unrolled,
            "undecided": self.undecided,
            "curves": self.curves,
        }
        known = sorted(self.precisions)
        for name, precisions in by_precision.items():
            unknown = sorted(set(precisions).difference(known))
            if unknown:
                raise ValueError(f"{name} names {unknown}, but the precisions are {known}")
        return self

    @property
    def decided(self) -> list[str]:
        """The precisions that lose no more than the export allowed."""
        return [precision for precision in self.precisions if precision not in self.undecided]

    @property
    def graphs(self) -> list[str]:
        return [*self.precisions.values(), *self.cpu_graphs.values(), *self.unrolled.values()]

    def halting_policy(self, precision: str = "fp32") -> HaltingPolicy:
        """The halting rule, with the threshold of the precision's curve if there is one."""
        threshold = self.halting.threshold
        if precision in self.curves:
            threshold = self.curves[precision].threshold
        kind = self.halting.policy
        return HaltingPolicy(kind=kind, threshold=threshold, max_segments=self.max_segments)


def read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST_NAME
    remedy = "give the directory that hrm-export wrote."
    if file.is_symlink() or not file.is_file():
        raise BundleError(f"{file} is missing or not a plain file: {remedy}")
    try:
        fields = object_of(file, MAX_MANIFEST_BYTES)
    except ValueError as error:
        raise BundleError(f"{file} cannot be read as JSON ({error}): {remedy}") from error
    version = fields.get("format_version")
    if version != FORMAT_VERSION:
        raise BundleError(
            f"{path} has bundle format version {version!r} and this program reads "
            f"{FORMAT_VERSION}: export it again, or use the program it was made for."
        )
    return _validated(path, fields)


def write_manifest(path: Path, **fields: object) -> Manifest:
    """Write the manifest of every file in `path` but the card, atomically.

    `fields` are the fields of `Manifest`, without `files`.
    """
    files: dict[str, object] = {}
    for file in sorted(path.iterdir()):
        if file.is_file() and file.name not in (MANIFEST_NAME, CARD_NAME):
            size_bytes = file.stat().st_size
            files[file.name] = {"sha256": sha256_of(file), "size_bytes": size_bytes}
    manifest = _validated(path, {**fields, "files": files})
    atomic.write_text(path / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")
    return manifest


def _validated(path: Path, fields: Mapping[str, object]) -> Manifest:
    try:
        return Manifest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = words_for(first)
        place = ".".join(map(str, first["loc"]))
        if place:
            problem = f"at {place!r}: {problem}"
        message = f"the manifest of {path} is wrong ({problem}): export it again."
        raise BundleError(message) from error
