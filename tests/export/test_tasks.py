"""A bundle shows what its tasks ask for: the pairs of each as it is, the held-out ones apart."""

import json
from pathlib import Path

from hrm_export.inputs import identifiers_of, tasks_of
from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcRecipe, build_arc

PAIRS = [{"input": [[1, 2]], "output": [[2], [1]]}, {"input": [[3]], "output": [[4, 4]]}]
TEST = [{"input": [[5, 5, 5]], "output": [[6]]}]


def test_tasks_hold_their_pairs_and_no_variant_or_further_example(tmp_path: Path) -> None:
    for name in ("first", "second"):
        file = tmp_path / "arc" / "training" / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"train": PAIRS, "test": TEST}))
    arc = registry.get("arc-7x7")
    assert isinstance(arc, Arc)
    more = tmp_path / "more.json"
    more.write_text(json.dumps({"second": [{"input": [[7]], "output": [[8]]}] * 3}))
    (tmp_path / "LICENSE").write_text("MIT License")
    recipe = ArcRecipe(
        puzzle=arc.name,
        dataset=str(tmp_path / "arc"),
        augment=3,
        hold_out_all=True,
        more=str(more),
    )
    build_arc(recipe, arc, tmp_path / "data")
    names = json.loads((tmp_path / "data" / "identifiers.json").read_text())
    assert len(names) == 9
    tasks = tasks_of(tmp_path / "data", arc, identifiers_of(tmp_path / "data", len(names)))
    assert tasks == {name: {"train": PAIRS, "test": TEST} for name in ("first", "second")}
    assert tasks_of(tmp_path, registry.get("sudoku-4x4"), ["<blank>"]) == {}
