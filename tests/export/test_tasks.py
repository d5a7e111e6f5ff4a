"""A bundle shows what its tasks ask for: the pairs of each as it is, the held-out ones apart."""

import json
from pathlib import Path

from hrm_export.inputs import identifiers_of, tasks_of
from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcRecipe, build_arc

PAIRS = [{"input": [[1, 2]], "output": [[2], [1]]}, {"input": [[3]], "output": [[4, 4]]}]
TEST = [{"input": [[5, 5, 5]], "output": [[6]]}]
TASK = {"train": PAIRS, "test": TEST}


def test_tasks_hold_their_pairs_and_no_variant_or_further_example(tmp_path: Path) -> None:
    folder = tmp_path / "arc" / "training"
    folder.mkdir(parents=True)
    for name in ("first", "second"):
        (folder / f"{name}.json").write_text(json.dumps(TASK))
    arc = registry.get("arc-7x7")
    assert isinstance(arc, Arc)
    more = tmp_path / "more.json"
    more.write_text(json.dumps({"second": [{"input": [[7]], "output": [[8]]}] * 3}))
    (tmp_path / "LICENSE").write_text("MIT License")
    dataset = str(folder.parent)
    recipe = ArcRecipe(
        puzzle=arc.name, dataset=dataset, augment=3, hold_out_all=True, more=str(more)
    )
    data = tmp_path / "data"
    build_arc(recipe, arc, data)
    identifiers = identifiers_of(data, 9)
    assert tasks_of(data, arc, identifiers) == {"first": TASK, "second": TASK}
    assert tasks_of(tmp_path, registry.get("sudoku-4x4"), ["<blank>"]) == {}
