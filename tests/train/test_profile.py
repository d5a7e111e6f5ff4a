"""A profile of real steps: our phases and the operators inside them, as a table and as a trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from train_tools import small_trainer

from hrm_train.profile import ACTIVE, TABLE, TRACE, profile_steps


def test_a_profile_tells_phases_and_operators_apart(data: Path, tmp_path: Path) -> None:
    found = profile_steps(small_trainer(data), tmp_path / "run")
    phases = {share.name: share for share in found.phases}
    assert {"forward", "backward", "optimiser"} <= set(phases)
    assert phases["forward"].calls == 1
    assert 0 < sum(share.ms for share in found.phases) < 1.5 * found.step_ms
    assert "aten::mm" in {share.name for share in found.operators}
    assert [share.ms for share in found.operators] == sorted((share.ms for share in found.operators), reverse=True)
    text = (tmp_path / "run" / TABLE).read_text()
    assert "backward" in text
    assert "aten::mm" in text
    events = json.loads(gzip.decompress((tmp_path / "run" / TRACE).read_bytes()))["traceEvents"]
    assert len([event for event in events if event.get("name") == "phase/backward"]) == ACTIVE
