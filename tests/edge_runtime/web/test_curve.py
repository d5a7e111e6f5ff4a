"""The curve and the figures of an answer, in words that a stranger understands."""

import pytest
from service_tools import Server
from visit_tools import SIZES, Size, visit
from web_tools import Browser, Page, choose, expect, screen, solve

pytestmark = pytest.mark.process

FIXED = """count => {
    document.querySelector("#segments-wanted").value = `${count}`;
    document.querySelector("#policy").value = "fixed";
}"""
OLD_WORDS = ("Halting margin", "Seen from here", "content", "Its own wish")


def figures(page: Page) -> dict[str, str]:
    names = page.locator("#figures dt").all_inner_texts()
    values = page.locator("#figures dd").all_inner_texts()
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize("size", SIZES)
def test_curve_says_how_sure_the_model_is_and_marks_the_proof(
    browser: Browser, site: Server, size: Size
) -> None:
    with visit(browser, site, size) as page:
        choose(page, "sudoku-6x6", "Few givens")
        page.evaluate(FIXED, 8)
        assert solve(page) == "Proven"
        expect(page.locator("#curve .proof-words")).to_have_text("proof found here")
        assert page.inner_text("#margins figcaption").startswith("How sure it is")
        label = page.get_attribute("#curve svg", "aria-label")
        assert label is not None
        assert "proof found after" in label
        screen(page, f"curve-{size[0]}", whole=False)


def test_curve_marks_no_proof_before_its_segment(browser: Browser, site: Server) -> None:
    with visit(browser, site, SIZES[0]) as page:
        choose(page, "sudoku-6x6", "Few givens")
        page.evaluate(FIXED, 8)
        assert solve(page) == "Proven"
        page.fill("#segment", "1")
        expect(page.locator("#segment-now")).to_have_text("1")
        assert page.locator("#curve .proof").count() == 0


@pytest.mark.parametrize("size", SIZES)
def test_one_segment_has_no_curve(browser: Browser, site: Server, size: Size) -> None:
    with visit(browser, site, size) as page:
        page.evaluate(FIXED, 1)
        solve(page)
        assert page.is_visible("#playback")
        assert page.is_hidden("#margins")


def test_figures_use_no_words_of_the_trade(browser: Browser, site: Server) -> None:
    with visit(browser, site, SIZES[0]) as page:
        choose(page, "maze-8x8", "Long way")
        assert solve(page) == "Proven"
        named = figures(page)
        assert named["Its way"].endswith(" moves, the fewest possible")
        assert named["From Solve to answer"].endswith("s")
        assert "above" in named["How sure it was"]
        choose(page, "logistics-6x6", "Main street")
        assert solve(page) == "Proven"
        assert figures(page)["Its way"] == "cost 24, the least possible"
        text = page.text_content("#puzzle") or ""
        assert [words for words in OLD_WORDS if words in text] == []
