"""ARC: grids on the canvas as published, questions in every form a person sends, variants undone exactly."""

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc, ArcSymmetry
from hrm_puzzles.arc.canvas import canvas_T, grid_at
from hrm_puzzles.arc.variants import Variant, turned, variant_of, variants_of
from hrm_puzzles.puzzle import UNKNOWN, Grid, PuzzleError

SIDE = 10
SMALL = Arc(name="arc-10x10", side=SIDE)
IGNORE = -100


@st.composite
def grids(draw: st.DrawFn, side: int = SIDE) -> Grid:
    height, width = draw(st.integers(1, side)), draw(st.integers(1, side))
    cells = draw(st.lists(st.integers(0, 9), min_size=height * width, max_size=height * width))
    return np.array(cells, dtype=np.int8).reshape(height, width)


@st.composite
def variants(draw: st.DrawFn) -> Variant:
    return Variant(turn=draw(st.integers(0, 7)), colours=(0, *draw(st.permutations(range(1, 10)))))


def test_a_grid_stands_on_its_canvas_with_end_marks_below_and_beside_it() -> None:
    assert canvas_T(np.array([[1, 0, 2], [3, 4, 9]], dtype=np.int8), 5).reshape(5, 5).tolist() == [
        [3, 2, 4, 1, 0],
        [5, 6, 11, 1, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    assert canvas_T(np.array([[7]], dtype=np.int8), 3, (2, 1)).reshape(3, 3).tolist() == [
        [0, 0, 0],
        [0, 0, 0],
        [0, 9, 1],
    ]


@given(grids())
def test_encoding_is_undone_by_decoding(grid: Grid) -> None:
    assert np.array_equal(SMALL.decode(SMALL.encode(grid)), grid)
    assert SMALL.is_well_formed_B(SMALL.encode(grid)[None]).all()


@given(grids(side=6), st.integers(0, 4), st.integers(0, 4))
def test_a_grid_is_found_wherever_it_stands(grid: Grid, top: int, left: int) -> None:
    tokens_T = canvas_T(grid, SIDE, (top, left))
    assert np.array_equal(SMALL.decode(tokens_T), grid)
    assert SMALL.is_well_formed_B(tokens_T[None]).all()


@given(st.lists(st.integers(-3, 14), min_size=16, max_size=16))
def test_garbage_decodes_to_the_largest_box_of_colours_as_the_published_scoring_finds_it(
    tokens: list[int],
) -> None:
    tokens_T = np.array(tokens)
    canvas, best = tokens_T.reshape(4, 4), (0, 0)
    for height in range(1, 5):
        for width in range(1, 5):
            box = canvas[:height, :width]
            if ((box >= 2) & (box <= 11)).all() and height * width > best[0] * best[1]:
                best = (height, width)
    assert np.array_equal(grid_at(tokens_T, 4), canvas[: best[0], : best[1]] - 2)
    Arc(name="arc-4x4", side=4).decode(tokens_T)  # finds something, and never fails


def test_a_broken_canvas_is_no_grid() -> None:
    good = SMALL.encode(np.ones((3, 4), dtype=np.int8))
    broken = np.stack([good] * 4)
    broken[0, 44] = 5  # a colour beside the grid
    broken[1, 4] = 0  # an end mark missing
    broken[2, 11] = 1  # a hole
    broken[3] = 0
    assert SMALL.is_well_formed_B(broken).tolist() == [False] * 4


@pytest.mark.parametrize(
    "asked",
    [
        {"task": "00d62c1b", "input": [[0, 1], [2, 3], [4, 5]]},
        {
            "id": "00d62c1b",
            "train": [],
            "test": [{"input": [[9]]}, {"input": [[0, 1], [2, 3], [4, 5]]}],
            "index": 1,
        },
        {"name": "00d62c1b", "test": [{"input": [[0, 1], [2, 3], [4, 5]], "output": [[1]]}]},
        {"task": "00d62c1b", "input": ["01", "23", "45"]},
        {"task": "00d62c1b", "input": "0 1\n2 3\n4 5\n"},
    ],
)
def test_every_form_of_a_question_is_read(asked: dict[str, object]) -> None:
    for notation in (asked, json.dumps(asked)):
        parsed = SMALL.parse(notation)
        assert parsed.identifier == "00d62c1b"
        assert parsed.grid.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_answers_are_written_as_the_question_was() -> None:
    answer = np.array([[1, 2], [3, 4]], dtype=np.int8)
    forms: list[tuple[object, object]] = [
        ([[0]], [[1, 2], [3, 4]]),
        (["0"], ["12", "34"]),
        ("0", "12\n34"),
    ]
    for asked, expected in forms:
        assert SMALL.write(answer, SMALL.parse({"task": "x", "input": asked}).notation) == expected
    assert (
        SMALL.write(
            np.zeros((0, 0), dtype=np.int8), SMALL.parse({"task": "x", "input": [[0]]}).notation
        )
        == []
    )


@pytest.mark.parametrize(
    ("notation", "rule", "cell"),
    [
        (7, "not-a-puzzle", None),
        ("hello", "not-a-puzzle", None),
        ([[1, 2]], "no-task", None),
        ("12\n34", "no-task", None),
        ({"input": [[1]]}, "no-task", None),
        ({"task": 5, "input": [[1]]}, "no-task", None),
        ({"task": "x" * 200, "input": [[1]]}, "no-task", None),
        ({"task": "x"}, "no-input", None),
        ({"task": "x", "test": [{}]}, "no-input", None),
        ({"task": "x", "test": [{"input": [[1]]}], "index": 1}, "no-such-index", None),
        ({"task": "x", "test": [{"input": [[1]]}], "index": True}, "no-such-index", None),
        ({"task": "x", "input": 5}, "not-a-grid", None),
        ({"task": "x", "input": [[1], 2]}, "not-a-grid", (2, 1)),
        ({"task": "x", "input": []}, "empty", None),
        ({"task": "x", "input": [[]]}, "empty", None),
        ({"task": "x", "input": [[1, 2], [3]]}, "wrong-length", (2, 2)),
        ({"task": "x", "input": [[1, 2], [3, 10]]}, "bad-colour", (2, 2)),
        ({"task": "x", "input": [[1, True]]}, "bad-colour", (1, 2)),
        ({"task": "x", "input": ["1x"]}, "bad-colour", (1, 2)),
        ({"task": "x", "input": [[0] * 11]}, "too-large", (1, 11)),
        ({"task": "x", "input": [[0]] * 11}, "too-large", (11, 1)),
    ],
)
def test_what_is_no_question_is_refused_with_rule_and_cell(
    notation: object, rule: str, cell: tuple[int, int] | None
) -> None:
    with pytest.raises(PuzzleError) as caught:
        SMALL.parse(notation)
    assert (caught.value.rule, caught.value.cell) == (rule, cell)
    assert "; " in str(caught.value)


def test_turns_are_the_published_ones() -> None:
    grid = np.array([[1, 2], [3, 4]], dtype=np.int8)
    images = [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]
    images += [[[2, 1], [4, 3]], [[3, 4], [1, 2]], [[1, 3], [2, 4]], [[4, 2], [3, 1]]]
    assert [turned(grid, turn).tolist() for turn in range(8)] == images


@given(grids(), variants())
def test_a_variant_is_undone_exactly_and_told_by_its_name(grid: Grid, variant: Variant) -> None:
    assert np.array_equal(variant.invert(variant.apply(grid)), grid)
    assert variant_of(variant.name("00d62c1b")) == ("00d62c1b", variant)


def test_names_of_both_builders_are_read() -> None:
    variant = Variant(turn=3, colours=(0, 2, 1, 3, 4, 5, 6, 7, 8, 9))
    assert variant.name("a_b") == "a_b_t3_0213456789"
    assert (
        variant_of("a_b_t3_0213456789") == variant_of("a_b|||t3|||0213456789") == ("a_b", variant)
    )
    assert variant_of("a_b_t3_0013456789") == ("a_b_t3_0013456789", Variant())


@given(grids(side=6), grids(side=6), variants(), st.integers(0, 4), st.integers(0, 4))
def test_a_symmetry_is_undone_exactly_wherever_the_grids_stand(
    one: Grid, other: Grid, variant: Variant, top: int, left: int
) -> None:
    tokens_BT = np.stack([canvas_T(one, SIDE, (top, left)), canvas_T(other, SIDE, (left, top))])
    symmetry = ArcSymmetry(side=SIDE, variant=variant)
    image_BT = symmetry.apply(tokens_BT)
    assert SMALL.is_well_formed_B(image_BT).all()
    assert np.array_equal(SMALL.decode(image_BT[0]), variant.apply(one))
    assert np.array_equal(symmetry.invert(image_BT), tokens_BT)


@settings(max_examples=50, deadline=None)
@given(grids(), grids(), variants(), st.integers(0, 9999))
def test_variants_and_places_share_their_equivalence_number(
    asked: Grid, told: Grid, variant: Variant, seed: int
) -> None:
    pair = [
        np.stack([SMALL.encode(change(grid)) for change in (np.copy, variant.apply)])
        for grid in (asked, told)
    ]
    moved = SMALL.augment_BT(np.random.default_rng(seed), *pair)
    numbers = {int(number) for rows in (pair, moved) for number in SMALL.equivalence_hash_B(*rows)}
    assert len(numbers) == 1


def test_different_pairs_have_different_equivalence_numbers() -> None:
    rng = np.random.default_rng(0)
    rows = [
        SMALL.encode(rng.integers(10, size=rng.integers(1, 5, size=2)).astype(np.int8))
        for _ in range(400)
    ]
    inputs_BT, labels_BT = np.stack(rows[:200]), np.stack(rows[200:])
    distinct = len({(a.tobytes(), b.tobytes()) for a, b in zip(inputs_BT, labels_BT, strict=True)})
    assert (
        len(np.unique(SMALL.equivalence_hash_B(inputs_BT, labels_BT))) >= distinct - 5
    )  # a few small pairs are alike
    assert not (
        SMALL.equivalence_hash_B(inputs_BT, labels_BT)
        == SMALL.equivalence_hash_B(labels_BT, inputs_BT)
    ).all()


@settings(max_examples=50, deadline=None)
@given(grids(), grids(), st.integers(0, 9999))
@example(np.zeros((9, 9), np.int8), np.zeros((9, 10), np.int8), 0)  # no pad beside the answer
def test_training_moves_both_grids_to_one_place_where_they_fit(
    asked: Grid, told: Grid, seed: int
) -> None:
    inputs_BT, labels_BT = (np.stack([SMALL.encode(grid)] * 8) for grid in (asked, told))
    labels_BT[labels_BT == 0] = IGNORE
    moved, targets = SMALL.augment_BT(np.random.default_rng(seed), inputs_BT, labels_BT)
    for question_T, target_T in zip(moved, targets, strict=True):
        assert np.array_equal(SMALL.decode(question_T), asked)
        assert np.array_equal(SMALL.decode(target_T), told)
        assert np.argmax(question_T >= 2) == np.argmax(target_T >= 2)
        assert set(target_T[target_T < 2]) <= {1, IGNORE}
    assert SMALL.is_well_formed_B(moved).all()
    assert SMALL.is_well_formed_B(np.where(targets == IGNORE, 0, targets)).all()


def test_training_reaches_every_place_that_fits() -> None:
    tokens_BT = np.stack([SMALL.encode(np.ones((8, 9), dtype=np.int8))] * 200)
    moved, _ = SMALL.augment_BT(np.random.default_rng(0), tokens_BT, tokens_BT)
    assert set(np.argmax(moved >= 2, axis=1)) == {0, 1, 10, 11, 20, 21}


def test_a_task_has_no_more_variants_than_look_different() -> None:
    rng = np.random.default_rng(0)
    plain = np.zeros((2, 2), dtype=np.int8)
    assert variants_of([(plain, plain)], 50, rng) == [Variant()]
    assert (
        len(variants_of([(plain, np.ones((2, 2), dtype=np.int8))], 50, rng)) == 9
    )  # one colour, nine names for it
    crossed = np.array([[1, 0], [0, 0]], dtype=np.int8)
    assert len(variants_of([(crossed, plain)], 100, rng)) == 36  # four corners, nine colours


def test_variants_of_a_task_are_distinct_whichever_pair_comes_first() -> None:
    rng = np.random.default_rng(1)
    pairs = [
        (rng.integers(3, size=(3, 2)).astype(np.int8), rng.integers(3, size=(2, 2)).astype(np.int8))
        for _ in "ab"
    ]
    found = variants_of(pairs, 100, rng)
    images = {
        tuple(sorted((variant.apply(q).tobytes(), variant.apply(a).tobytes()) for q, a in pairs))
        for variant in found
    }
    assert len(images) == len(found) == 101


def test_nothing_is_proven_generated_or_revealed() -> None:
    tokens_BT = SMALL.encode(np.ones((2, 2), dtype=np.int8))[None]
    assert SMALL.check_BT(tokens_BT, tokens_BT).tolist() == [UNKNOWN]
    assert not SMALL.proof_exists
    with pytest.raises(PuzzleError, match="hrm-data build arc-10x10"):
        SMALL.generate(np.random.default_rng(0), "easy")
    assert (
        SMALL.reveal_BT(np.random.default_rng(0), tokens_BT, tokens_BT, np.array([3])) == tokens_BT
    ).all()


def test_the_registered_canvases_have_the_published_sizes() -> None:
    large, small = registry.get("arc"), registry.get("arc-10x10")
    assert (large.seq_len, large.vocab_size) == (900, 12)
    assert (small.seq_len, small.vocab_size) == (100, 12)
    assert large.geometry.board == (30, 30)
