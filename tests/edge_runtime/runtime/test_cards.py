"""Each bundle carries its card. Run as a script, it writes the cards of the shipped bundles."""

import json
import re
from pathlib import Path

import pytest
from bundle_tools import restate, shipped
from echo_bundle import write_echo_bundle
from files import text_of
from huggingface_hub import ModelCard

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.card import accuracy_of, card_of, interval
from hrm_edge_runtime.contract.manifest import CARD_NAME
from hrm_edge_runtime.contract.shipped import shipped_bundles

TRAINING = text_of("tools/train-shipped.sh")


def card(bundle: Bundle) -> str:
    return card_of(bundle.manifest, bundle.puzzle, bundle.path)


@pytest.mark.parametrize("name", shipped_bundles())
def test_a_shipped_card_is_that_of_its_manifest_and_hugging_face_reads_it(name: str):
    bundle = shipped(name)
    text = (bundle.path / CARD_NAME).read_text(encoding="utf-8")
    assert text == card(bundle), (
        "run PYTHONPATH=tests/support python tests/edge_runtime/runtime/test_cards.py"
    )
    assert CARD_NAME not in bundle.manifest.files
    data = ModelCard(text).data
    assert data.license == "apache-2.0"
    assert data.model_name == name
    results = data.eval_results or []
    measured = accuracy_of(bundle.manifest)
    shares = [measured["solved"], measured["solved_16_attempts"]]
    assert [result.metric_value for result in results] == shares
    (made_by,) = re.findall(r"^tools/train-shipped.sh (.+)$", text, re.MULTILINE)
    _, _, targets = TRAINING.partition("case ")
    assert made_by in re.findall(r"[\w-]+", targets)


@pytest.mark.parametrize(
    ("share", "count", "low", "high"),
    [(0.9431, 510, 0.9194, 0.9601), (1.0, 510, 0.9925, 1.0), (0.0, 10, 0.0, 0.2775)],
)
def test_the_interval_is_wilsons(share: float, count: int, low: float, high: float):
    assert interval(share, count) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    "changes", [{}, {"held_out": 0, "solved": 0.5}, {"held_out": 10, "solved": "<b>all</b>"}]
)
def test_a_bundle_without_figures_has_a_card_without_figures(
    changes: dict[str, object], tmp_path: Path
):
    path = write_echo_bundle(tmp_path / "echo.bundle")
    restate(path, provenance={**changes, "command": "hrm-export runs/echo"})
    text = card(Bundle.open(path))
    assert "| --- |" not in text
    assert re.search(r"^\|---\|---\|---\|\n\n", text, re.MULTILINE)
    assert "hrm-export runs/echo" in text
    data = ModelCard(text).data
    assert data.license == "unknown"
    assert not data.eval_results


def test_an_edited_card_breaks_no_bundle(tmp_path: Path):
    path = write_echo_bundle(tmp_path / "echo.bundle")
    (path / CARD_NAME).write_text("mine\n")
    restate(path)
    (path / CARD_NAME).write_text("mine again\n")
    assert CARD_NAME not in json.loads((path / "manifest.json").read_text())["files"]
    assert Bundle.open(path).manifest.name == "echo"


if __name__ == "__main__":
    for each in shipped_bundles():
        opened = shipped(each)
        (opened.path / CARD_NAME).write_text(card(opened), encoding="utf-8")
