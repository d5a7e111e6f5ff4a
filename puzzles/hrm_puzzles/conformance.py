"""The laws that every puzzle keeps. `hrm-data check NAME` runs them over a puzzle of your own.

A law is a function whose docstring states it. It raises `BrokenLawError` with what it found.
Shapes: B batch, T tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.puzzle import RIGHT, WRONG, Grid, Int32Array, Puzzle, PuzzleError

SEED = 5
NUM_EXAMPLES = 12
NONSENSE: Sequence[object] = (
    None,
    7,
    -1.5,
    True,
    "",
    "?",
    "\0" * 9,
    "x" * 5000,
    [],
    [[]],
    [{}],
    [None],
    [[1], [1, 2]],
    [["S"]],
    {},
    {"grid": 5},
    {"a": [1]},
    {1: [1]},
)


class BrokenLawError(Exception):
    """A puzzle breaks a law; the text says how."""


class Samples(NamedTuple):
    """A puzzle, and generated questions with their answers as grids and as tokens."""

    puzzle: Puzzle
    questions: Sequence[Grid]
    answers: Sequence[Grid]
    inputs_BT: Int32Array
    labels_BT: Int32Array


def findings(puzzle: Puzzle) -> Iterator[tuple[str, str | None]]:
    """Yield each law that applies, and how the puzzle breaks it: None if it keeps the law.

    Fewer laws apply without a generator.
    """
    for law in LAWS:
        yield _finding(law, puzzle)
    if not puzzle.difficulties:
        return
    try:
        samples = samples_of(puzzle)
    except Exception as error:
        yield "The generator makes puzzles.", f"{type(error).__name__}: {error}"
        return
    for law in LAWS_OF_SAMPLES:
        yield _finding(law, samples)
    if puzzle.proof_exists:
        for law in LAWS_OF_PROOFS:
            yield _finding(law, samples)


def _finding(law: Callable[[Any], None], subject: object) -> tuple[str, str | None]:
    sentence = (law.__doc__ or "").splitlines()[0]
    try:
        law(subject)
    except BrokenLawError as error:
        return sentence, str(error)
    except Exception as error:  # a puzzle of another package may raise anything
        return sentence, f"{type(error).__name__}: {error}"
    return sentence, None


def samples_of(puzzle: Puzzle, seed: int = SEED) -> Samples:
    """Puzzles of every difficulty except "extreme", which takes seconds for each."""
    rng = np.random.default_rng(seed)
    names = [name for name in puzzle.difficulties if name != "extreme"]
    examples = [puzzle.generate(rng, names[number % len(names)]) for number in range(NUM_EXAMPLES)]
    questions = [example.question for example in examples]
    answers = [example.answer for example in examples]
    inputs_BT = np.stack([puzzle.encode(question) for question in questions])
    labels_BT = np.stack([puzzle.encode(answer) for answer in answers])
    return Samples(puzzle, questions, answers, inputs_BT, labels_BT)


def _require(holds: object, fault: str) -> None:
    if not holds:
        raise BrokenLawError(fault)


def _require_same(one: NDArray[np.generic], other: NDArray[np.generic], fault: str) -> None:
    _require(np.array_equal(one, other), fault)


# Laws of every puzzle


def geometry_fits(puzzle: Puzzle) -> None:
    """`geometry` fits the positions and the tokens."""
    puzzle.geometry.require(puzzle.seq_len, puzzle.vocab_size)


def nonsense_is_rejected(puzzle: Puzzle) -> None:
    """`parse` rejects nonsense with PuzzleError and with no other exception."""
    for value in NONSENSE:
        try:
            puzzle.parse(value)
        except PuzzleError as error:
            _require(error.problem and error.rule and error.remedy, f"{error!r} has empty parts")
        else:
            raise BrokenLawError(f"it reads {value!r:.40}")


def any_tokens_decode(puzzle: Puzzle) -> None:
    """`decode` makes a board from any tokens, even tokens that do not exist."""
    tokens_T = np.resize([0, 1, puzzle.vocab_size, 10**6, -5], puzzle.seq_len).astype(np.int32)
    again_T = puzzle.encode(puzzle.decode(tokens_T))
    is_known_T = (again_T >= 0) & (again_T < puzzle.vocab_size)
    _require(is_known_T.all(), f"{tokens_T[:5]} become the tokens {again_T[:5]}")


LAWS = (geometry_fits, nonsense_is_rejected, any_tokens_decode)


# Laws of generated puzzles


def tokens_fit(samples: Samples) -> None:
    """Questions and answers are int32 tokens of the vocabulary, without pads."""
    puzzle = samples.puzzle
    for tokens_BT in (samples.inputs_BT, samples.labels_BT):
        _require(tokens_BT.dtype == np.int32, f"the tokens are {tokens_BT.dtype}")
        _require(tokens_BT.shape[1] == puzzle.seq_len, f"{tokens_BT.shape[1]} tokens")
        is_known = tokens_BT.min() >= 1 and tokens_BT.max() < puzzle.vocab_size
        _require(is_known, f"tokens from {tokens_BT.min()} to {tokens_BT.max()}")


def boards_are_read_back(samples: Samples) -> None:
    """`decode` undoes `encode`, and `parse` reads what `asked` and `write` wrote."""
    puzzle = samples.puzzle
    for question, answer in zip(samples.questions, samples.answers, strict=True):
        _require_same(puzzle.decode(puzzle.encode(question)), question, "decode of encode")
        asked = puzzle.asked(question, "")
        parsed = puzzle.parse(asked)
        _require_same(parsed.grid, question, f"parse reads another board of {asked!r:.60}")
        written = puzzle.write(answer, parsed.notation)
        again = puzzle.parse(written).grid
        _require_same(again, answer, f"parse reads another answer of {written!r:.60}")


def sample_is_read(samples: Samples) -> None:
    """`parse` reads `sample`, and `render` draws it."""
    puzzle = samples.puzzle
    grid = puzzle.parse(puzzle.sample([])).grid
    _require(puzzle.render(grid, grid).strip(), "the picture is empty")


def seeds_repeat(samples: Samples) -> None:
    """The same state of the random generator makes the same puzzles."""
    again = samples_of(samples.puzzle)
    _require_same(again.inputs_BT, samples.inputs_BT, "other questions")
    _require_same(again.labels_BT, samples.labels_BT, "other answers")


def difficulties_are_known(samples: Samples) -> None:
    """`generate` rejects an unknown difficulty with PuzzleError."""
    try:
        samples.puzzle.generate(np.random.default_rng(SEED), "unheard-of")
    except PuzzleError:
        return
    raise BrokenLawError("generate accepts the difficulty 'unheard-of'")


def copies_share_a_hash(samples: Samples) -> None:
    """`equivalence_hash_B` is the same for turned copies, and differs for other puzzles."""
    puzzle, _, _, inputs_BT, labels_BT = samples
    hash_B = puzzle.equivalence_hash_B(inputs_BT, labels_BT)
    turned = puzzle.augment_BT(np.random.default_rng(SEED), inputs_BT, labels_BT)
    _require_same(puzzle.equivalence_hash_B(*turned), hash_B, "a turned copy has another hash")
    num_different = len(np.unique(hash_B))
    _require(num_different > NUM_EXAMPLES // 2, f"{num_different} hashes of {NUM_EXAMPLES} puzzles")


def symmetry_is_undone(samples: Samples) -> None:
    """`invert` of a symmetry undoes `apply`, and `apply` undoes `invert`."""
    rng = np.random.default_rng(SEED)
    for tokens_BT in (samples.inputs_BT, samples.labels_BT):
        symmetry = samples.puzzle.symmetry(rng)
        _require_same(symmetry.invert(symmetry.apply(tokens_BT)), tokens_BT, "apply, invert")
        _require_same(symmetry.apply(symmetry.invert(tokens_BT)), tokens_BT, "invert, apply")


LAWS_OF_SAMPLES = (
    tokens_fit,
    boards_are_read_back,
    sample_is_read,
    seeds_repeat,
    difficulties_are_known,
    copies_share_a_hash,
    symmetry_is_undone,
)


# Laws of puzzles whose answers can be proven


def answers_are_right(samples: Samples) -> None:
    """`check_BT` accepts the generator's answers, judges each row alone, and returns int8."""
    puzzle, _, _, inputs_BT, labels_BT = samples
    verdict_B = puzzle.check_BT(inputs_BT, labels_BT)
    _require(verdict_B.dtype == np.int8, f"verdicts are {verdict_B.dtype}")
    _require((verdict_B == RIGHT).all(), f"the verdicts are {verdict_B}")
    mixed_BT = labels_BT.copy()
    mixed_BT[1::2] = labels_BT[::2]
    verdict_B = puzzle.check_BT(inputs_BT, mixed_BT)
    for row in range(len(inputs_BT)):
        alone = puzzle.check_BT(inputs_BT[[row]], mixed_BT[[row]])[0]
        _require(
            alone == verdict_B[row], f"row {row} alone is {alone}, in a batch {verdict_B[row]}"
        )


def changed_answers_are_wrong(samples: Samples) -> None:
    """`check_BT` disproves an answer with any one cell changed, and rows of pads."""
    puzzle, _, _, inputs_BT, labels_BT = samples
    cells = np.arange(puzzle.seq_len)
    for row in range(3):
        answers_BT = np.repeat(labels_BT[[row]], puzzle.seq_len, axis=0)
        changed_T = (answers_BT[cells, cells] + 1 + cells) % (puzzle.vocab_size + 1)
        is_changed_T = changed_T != labels_BT[row]
        answers_BT[cells, cells] = changed_T
        inputs_TT = np.repeat(inputs_BT[[row]], puzzle.seq_len, axis=0)
        verdict_T = puzzle.check_BT(inputs_TT, answers_BT)
        wrong_T = (verdict_T == WRONG) | ~is_changed_T
        _require(wrong_T.all(), f"it proves an answer whose cell {np.argmin(wrong_T)} is wrong")
    pads_BT = np.zeros_like(labels_BT)
    _require((puzzle.check_BT(pads_BT, pads_BT) == WRONG).all(), "it proves rows of pads")


def verdicts_do_not_turn(samples: Samples) -> None:
    """A symmetry changes no verdict, and turned examples keep right labels."""
    puzzle, _, _, inputs_BT, labels_BT = samples
    rng = np.random.default_rng(SEED)
    for answers_BT in (labels_BT, np.roll(labels_BT, 1, axis=0)):
        symmetry = puzzle.symmetry(rng)
        verdict_B = puzzle.check_BT(inputs_BT, answers_BT)
        turned_B = puzzle.check_BT(symmetry.apply(inputs_BT), symmetry.apply(answers_BT))
        _require_same(turned_B, verdict_B, f"{verdict_B} become {turned_B}")
    augmented = puzzle.augment_BT(rng, inputs_BT, labels_BT)
    _require((puzzle.check_BT(*augmented) == RIGHT).all(), "augment_BT makes wrong labels")


LAWS_OF_PROOFS = (answers_are_right, changed_answers_are_wrong, verdicts_do_not_turn)
