"""A bundle's card in the layout of Hugging Face: README.md beside its manifest.

Its figures are those of the manifest, recorded when the bundle was made. No hash covers README.md,
so its owner may edit it.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hrm_edge_runtime.contract.manifest import Manifest
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES
from hrm_host.reading import counted
from hrm_puzzles.puzzle import Described, Puzzle

Z_95 = 1.959964
ORIGIN = ("data", "data_fingerprint", "samples", "commit", "time", "num_parameters")
"""What a card takes from the provenance; `samples` are those of the last run."""
PROOF = "An answer is proven if the puzzle's own check accepts it; any other may be wrong."
NO_PROOF = "No check can prove an answer, so any may be wrong."
CARD = """---
{front_matter}
---
# {manifest.name}

{about}.

## Data and training

{origin}

```
{command}
```

## Accuracy

| held-out puzzles | solved | 95 % |
|---|---|---|
{accuracy}

## Limits

{limits}
"""


def card_of(manifest: Manifest, puzzle: Puzzle, path: Path) -> str:
    """The card of the bundle in this directory."""
    provenance = manifest.provenance
    measured = list(_measured(manifest))
    rows = [f"| {count:,}, {name} | {_percents(share, count)} |" for name, share, count in measured]
    metrics = [{"type": "accuracy", "name": name, "value": share} for name, share, _ in measured]
    license_name = "unknown"
    command = "hrm-export"
    if path.parent == SHIPPED_BUNDLES:
        license_name = "apache-2.0"
        command = f"tools/train-shipped.sh {manifest.name}"
    limits = [
        PROOF if puzzle.proof_exists else NO_PROOF,
        f"A puzzle gets at most {counted(manifest.max_segments, 'segment')}.",
        *(f"{precision}: {doubt}." for precision, doubt in manifest.undecided.items()),
    ]
    return CARD.format(
        front_matter=_front_matter(manifest, license_name, metrics),
        manifest=manifest,
        about=puzzle.about if isinstance(puzzle, Described) else puzzle.name,
        origin="\n".join(f"- {key}: {provenance[key]}" for key in ORIGIN if key in provenance),
        command=provenance.get("command", command),
        accuracy="\n".join(rows),
        limits="\n".join(f"- {limit}" for limit in limits),
    )


def _front_matter(manifest: Manifest, license_name: str, metrics: list[dict[str, Any]]) -> str:
    """YAML whose values are JSON."""
    result = {
        "task": {"type": "puzzle-solving"},
        "dataset": {"type": manifest.puzzle, "name": f"held-out {manifest.puzzle}"},
        "metrics": metrics,
    }
    fields = {
        "license": license_name,
        "library_name": "hrm-edge",
        "tags": ["onnx", "hrm", manifest.puzzle],
        "datasets": [manifest.provenance.get("data", manifest.puzzle)],
        "model-index": [{"name": manifest.name, "results": [result]}],
    }
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in fields.items())


def accuracy_of(manifest: Manifest) -> dict[str, Any]:
    """Shares of held-out puzzles: from the provenance, or the best point of the halting curve."""
    keys = ("held_out", "solved", "solved_16_attempts")
    accuracy: dict[str, Any] = {key: manifest.provenance.get(key) for key in keys}
    curve = manifest.curves.get("fp32")
    if accuracy["solved"] is None and curve is not None:
        accuracy["held_out"] = curve.num_puzzles
        accuracy["solved"] = max(point.exact for point in curve.points)
    return accuracy


def interval(share: float, count: int) -> tuple[float, float]:
    """95 % confidence interval of a share of `count` puzzles, by Wilson (1927)."""
    added = Z_95**2 / count
    middle = share + added / 2
    half = math.sqrt(added * (share * (1 - share) + added / 4))
    return (middle - half) / (1 + added), (middle + half) / (1 + added)


def _measured(manifest: Manifest) -> Iterator[tuple[str, float, int]]:
    """Number of attempts, share solved, and number of puzzles; skips what is not a share."""
    accuracy = accuracy_of(manifest)
    count = accuracy["held_out"]
    for name, key in (("one attempt", "solved"), ("16 attempts", "solved_16_attempts")):
        share = accuracy[key]
        are_numbers = isinstance(share, int | float) and isinstance(count, int)
        if are_numbers and 0 <= share <= 1 and count > 0:
            yield name, share, count


def _percents(share: float, count: int) -> str:
    low, high = interval(share, count)
    return f"{100 * share:.1f} % | {100 * low:.1f} to {100 * high:.1f} %"
