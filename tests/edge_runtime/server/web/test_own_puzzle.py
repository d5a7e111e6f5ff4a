"""A puzzle of another package has a board: the page draws the symbols of its legend."""

import os
import sys
from collections.abc import Iterator

import pytest
from bundle_tools import install
from echo_bundle import write_echo_bundle
from service_tools import Server, hrm_serve
from web_tools import (
    LAPTOPS,
    SIZES,
    Browser,
    Size,
    cell,
    digits,
    expect,
    paste,
    require_no_sideways_scroll,
    screen,
    solve,
    visit,
)

pytestmark = pytest.mark.process

LATIN = '''
"""A Latin square: a Sudoku whose boxes are its rows, with letters for digits."""

from hrm_puzzles.reading.legend import Legend
from hrm_puzzles.sudoku.sudoku import Sudoku

VALUES = {".": 0, "A": 1, "B": 2, "C": 3, "D": 4}
SYMBOLS = {value: symbol for symbol, value in VALUES.items()}


class Latin(Sudoku):
    goal = "Write each of A to D once into every row and column."
    legend = Legend(values=VALUES, characters=SYMBOLS, open_value=0, described="A to D")

    def parse(self, notation):
        if isinstance(notation, str):
            cells = [VALUES.get(symbol) for symbol in notation.replace("\\n", "")]
            notation = [cells[start : start + 4] for start in range(0, len(cells), 4)]
        return super().parse(notation)

    def asked(self, grid, identifier=""):
        return "".join(SYMBOLS[value] for value in grid.reshape(-1).tolist())


def latin():
    return Latin(name="latin-4x4", box_rows=1, box_cols=4)
'''
ENTRY_POINTS = "[hrm_edge.puzzles]\nlatin-4x4 = latin_square:latin\n"
SQUARE = "ABCDBADCCDABDCBA"


@pytest.fixture(scope="module")
def own_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the plug-in and a model that echoes the question."""
    folder = tmp_path_factory.mktemp("plug-in")
    (folder / "latin_square.py").write_text(LATIN)
    install(folder, ENTRY_POINTS)
    bundle = write_echo_bundle(folder / "latin.bundle", name="latin", puzzle="latin-4x4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
        with hrm_serve(bundle) as server:
            yield server


@pytest.mark.parametrize("size", SIZES)
def test_own_puzzle_is_drawn_and_proven(browser: Browser, own_site: Server, size: Size):
    with visit(browser, own_site, size) as page:
        expect(page.locator("#undrawable")).to_be_hidden()
        expect(page.locator("#model optgroup").first).to_have_attribute("label", "Other puzzles")
        expect(page.locator("#goal")).to_have_text(
            "Write each of A to D once into every row and column."
        )
        assert set(digits(page)) <= set(".ABCD")
        page.click("#clear")
        cell(page, 1, 1).click()
        page.keyboard.type(SQUARE.lower())
        assert digits(page) == SQUARE
        assert solve(page) == "Proven"
        assert digits(page) == SQUARE
        assert page.url.endswith(f"/#latin={SQUARE}")
        page.click("#copy-answer")
        expect(page.locator("#shared")).to_have_text("The answer is copied.")
        require_no_sideways_scroll(page)
        if size == LAPTOPS[0]:
            screen(page, "own-puzzle")


def test_own_puzzle_is_linked_pasted_and_fresh(browser: Browser, own_site: Server):
    with visit(browser, own_site, SIZES[0], f"/#latin={SQUARE[:-1]}.") as page:
        assert digits(page) == f"{SQUARE[:-1]}."
        assert solve(page) == "Not proven"
        paste(page, "AA..\n....\n....\n....")
        assert digits(page).startswith("AA..")
        assert solve(page) == "Not a puzzle"
        assert cell(page, 1, 2).get_attribute("aria-invalid") == "true"
        page.click("#new")
        page.click("#show-label")
        expect(page.locator("#verdict-title")).to_have_text("The generator's answer")
        assert set(digits(page)) == set("ABCD")
