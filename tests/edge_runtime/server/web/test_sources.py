"""The files of the page: narrow enough to read, and free of the address they are served at."""

import re

from files import ROOT

WEB = ROOT / "edge_runtime" / "hrm_edge_server" / "web"
SOURCES = sorted(path for path in WEB.rglob("*") if path.suffix in {".js", ".css", ".html"})
WIDEST = 100
# What a browser loads or asks: an attribute, a url() of a style, or a path passed to a request.
ABSOLUTE = re.compile(r'(?:href=|src=|url\(|fetch\(|getJson\(|getText\(|post\(|asked\()["`\']/')


def test_no_line_of_the_page_is_wider_than_a_hundred_columns():
    assert SOURCES
    wide = []
    for path in SOURCES:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > WIDEST:
                wide.append(f"{path.relative_to(WEB)}:{number}")
    assert wide == []


def test_the_page_asks_for_nothing_by_an_absolute_path():
    """A proxy may serve the page under a path, such as /hrm/."""
    assert SOURCES
    absolute = []
    for path in SOURCES:
        found = ABSOLUTE.findall(path.read_text(encoding="utf-8"))
        absolute += [f"{path.relative_to(WEB)}: {part}" for part in found]
    assert absolute == []
