"""A bundle's card in the layout of Hugging Face: README.md beside its manifest.

Its figures are those of the manifest, recorded when the bundle was made. No hash covers README.md,
so its owner may edit it.
"""

import json
import math
from pathlib import Path
from typing import Any

from hrm_edge_runtime.contract.manifest import Manifest
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES
from hrm_host.reading import counted
from hrm_puzzles.puzzle import Described, Puzzle

Z_95 = 1.959964
ORIGIN = (
    "architecture",
    "num_parameters",
    "data",
    "data_fingerprint",
    "samples",
    "commit",
    "time",
)
"""What a card takes from the provenance; `samples` are those of the last run."""
PROOF = "An answer is proven if the puzzle's own check accepts it; any other may be wrong."
NO_PROOF = "No check can prove an answer, so any may be wrong."
# The values of the front matter that others chose are JSON, which is YAML too.
CARD = """---
license: {license}
library_name: hrm-edge
tags: [onnx, hrm, {manifest.puzzle}]
datasets: [{data}]
model-index:
- name: {name}
  results:
  - task: {{type: puzzle-solving}}
    dataset: {{type: {manifest.puzzle}, name: held-out {manifest.puzzle}}}
    metrics: [{metrics}]
---
# {manifest.name}

It reads {about}.

## Data and training

{origin}

```
{command}
```

## Accuracy

| held-out puzzles | solved | 95 % |
|---|---|---|
{rows}

## Limits

{limits}
"""


def card_of(manifest: Manifest, puzzle: Puzzle, path: Path) -> str:
    """The card of the bundle in this directory."""
    provenance = manifest.provenance
    origin = {**provenance, "architecture": architecture_of(manifest)}
    is_shipped = path.parent == SHIPPED_BUNDLES
    made_by = f"tools/train-shipped.sh {manifest.name}" if is_shipped else "hrm-export"
    metrics: list[str] = []
    rows: list[str] = []
    for attempts, share, count in _measured(manifest):
        metrics.append(f"{{type: accuracy, name: {attempts}, value: {share}}}")
        low, high = interval(share, count)
        bounds = f"{100 * low:.1f} to {100 * high:.1f} %"
        rows.append(f"| {count:,}, {attempts} | {100 * share:.1f} % | {bounds} |")
    limits = [
        PROOF if puzzle.proof_exists else NO_PROOF,
        f"A puzzle gets at most {counted(manifest.max_segments, 'segment')}.",
        *(f"{precision}: {doubt}." for precision, doubt in manifest.undecided.items()),
    ]
    return CARD.format(
        license="apache-2.0" if is_shipped else "unknown",
        data=json.dumps(provenance.get("data", manifest.puzzle)),
        name=json.dumps(manifest.name),
        metrics=", ".join(metrics),
        manifest=manifest,
        about=puzzle.about if isinstance(puzzle, Described) else puzzle.name,
        origin="\n".join(f"- {key}: {origin[key]}" for key in ORIGIN if key in origin),
        command=provenance.get("command", made_by),
        rows="\n".join(rows),
        limits="\n".join(f"- {limit}" for limit in limits),
    )


def architecture_of(manifest: Manifest) -> str:
    """The family of its network; bundles that do not say are older, and relational."""
    return str(manifest.provenance.get("architecture", "relational"))


def accuracy_of(manifest: Manifest) -> dict[str, Any]:
    """Shares of held-out puzzles: from the provenance, or the best point of the halting curve."""
    keys = ("held_out", "solved", "solved_16_attempts")
    accuracy: dict[str, Any] = {key: manifest.provenance.get(key) for key in keys}
    curve = manifest.curves.get("fp32")
    if accuracy["solved"] is None and curve is not None:
        accuracy["held_out"] = curve.num_puzzles
        accuracy["solved"] = max(point.exact for point in curve.points)
    return accuracy


def _measured(manifest: Manifest) -> list[tuple[str, float, int]]:
    """Number of attempts, share solved, and number of puzzles; without what is not a share."""
    accuracy = accuracy_of(manifest)
    count = accuracy["held_out"]
    named = {"one attempt": accuracy["solved"], "16 attempts": accuracy["solved_16_attempts"]}
    found: list[tuple[str, float, int]] = []
    for attempts, share in named.items():
        are_numbers = isinstance(share, int | float) and isinstance(count, int)
        if are_numbers and 0 <= share <= 1 and count > 0:
            found.append((attempts, share, count))
    return found


def interval(share: float, count: int) -> tuple[float, float]:
    """95 % confidence interval of a share of `count` puzzles, by Wilson (1927)."""
    added = Z_95**2 / count
    middle = share + added / 2
    half = math.sqrt(added * (share * (1 - share) + added / 4))
    return (middle - half) / (1 + added), (middle + half) / (1 + added)
