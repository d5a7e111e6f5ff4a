"""Do two engines say the same? Golden traces or fresh puzzles, segment by segment, with numpy alone.

`walk.py` is the heart: both engines in lockstep, one puzzle for each slot. `hrm-parity` (`cli.py`) is the command.
"""

from hrm_edge_runtime.parity.gates import LOGIT_TOLERANCE
from hrm_edge_runtime.parity.golden import compare, replay
from hrm_edge_runtime.parity.report import ParityReport

__all__ = ["LOGIT_TOLERANCE", "ParityReport", "compare", "replay"]
