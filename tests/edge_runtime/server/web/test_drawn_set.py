"""A drawn set leaves the browser as a file that `hrm-data import` reads."""

import json
from pathlib import Path

import numpy as np
import pytest
from service_tools import wait_for
from web_tools import Page, cell, choose, expect, painted, paste, screen, solve

from hrm_puzzles import registry
from hrm_puzzles.data.build import import_file
from hrm_puzzles.data.datasets import open_split

pytestmark = pytest.mark.process


def exported(page: Page, folder: Path) -> Path:
    page.click("#tab-set")
    with page.expect_download() as waiting:
        page.click("#export")
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def check_import(file: Path, kind: str, num_examples: int) -> None:
    out = file.parent / "data"
    imported = import_file(file, registry.get(kind), out, split="train")
    assert (imported.num_train, imported.faults) == (num_examples, [])
    assert len(open_split(out, "train")) == num_examples


def test_solved_puzzles_are_exported_and_imported_as_a_data_set(page: Page, tmp_path: Path) -> None:
    for sample in ("Short", "Round the block", "Long way"):
        choose(page, "maze-8x8", sample)
        assert solve(page) == "Proven"
        page.click("#add")
        assert page.inner_text("#add") == "In the set"
    page.click("#tab-set")
    screen(page, "set")
    picture = page.locator("#set-list canvas").first
    light = painted(picture)
    page.emulate_media(color_scheme="dark")
    wait_for(lambda: painted(picture) != light)
    file = exported(page, tmp_path)
    command = f"hrm-data import {file.name} maze-8x8 --out data/drawn"
    assert page.inner_text("#set-command") == command
    check_import(file, "maze-8x8", 3)


def test_disproven_answer_is_kept_out_of_the_set(page: Page) -> None:
    choose(page, "sudoku", "Extreme")
    page.click("summary:has-text('How to think')")
    page.fill("#segments-wanted", "1")
    assert solve(page) == "Not proven"
    assert page.is_disabled("#add")


def test_answer_drawn_by_hand_makes_an_arc_pair(page: Page, tmp_path: Path) -> None:
    choose(page, "arc-7x7")
    for side, size in (("Rows", "1"), ("Columns", "3")):
        page.fill(f"#answer-board [aria-label={side}]", size)
        page.keyboard.press("Tab")
    page.click("label[title^=green]")
    page.locator("#answer-board [role=gridcell]").nth(2).click()
    page.click("#add")
    expect(page.locator("#add")).to_have_text("In the set")
    file = exported(page, tmp_path)
    pair = json.loads(file.read_text())
    assert pair["puzzle"]["task"] == page.input_value("#task")
    assert np.shape(pair["solution"]) == (1, 3)
    assert pair["solution"][0][2] == 3
    assert import_file(file, registry.get("arc-7x7"), tmp_path / "d", split="train").num_train == 1


def test_fresh_board_joins_the_set_with_its_answer(page: Page, tmp_path: Path) -> None:
    choose(page, "maze-14x14")  # which no model here solves
    expect(page.locator("#show-label")).to_be_visible()
    assert page.is_disabled("#solve")
    page.click("#show-label")
    page.click("#add")
    check_import(exported(page, tmp_path), "maze-14x14", 1)


def test_a_right_answer_drawn_on_a_maze_joins_the_set(page: Page, tmp_path: Path) -> None:
    choose(page, "maze-8x8")
    paste(page, "\n".join(["S..G####", *["########"] * 7]))
    page.click("#draw-label")
    cell(page, 1, 2).click()
    page.click("#add")  # the way is not whole yet
    expect(page.locator("#add-why")).to_contain_text("not a shortest path")
    cell(page, 1, 3).click()
    expect(page.locator("#add-why")).to_be_empty()
    page.click("#add")
    expect(page.locator("#add")).to_have_text("In the set")
    check_import(exported(page, tmp_path), "maze-8x8", 1)
