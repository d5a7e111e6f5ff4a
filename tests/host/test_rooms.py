"""The lowest room knows no other room, not even in a string."""

import re
from pathlib import Path

import hrm_host


def test_host_names_no_other_room() -> None:
    folder = Path(hrm_host.__file__).parent
    sources = [file.read_text(encoding="utf-8") for file in folder.rglob("*.py")]
    named = set(re.findall(r"\bhrm_[a-z]\w*", "\n".join(sources)))
    assert named == {"hrm_host", "hrm_edge"}  # hrm_edge is the prefix of the entry-point groups
