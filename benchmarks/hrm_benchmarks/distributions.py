"""How many segments puzzles take: synthetic shapes, or a histogram recorded from a model.

Shapes: N puzzles, S segments (`share_S[s]` is the share of puzzles that take s + 1 segments).
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAX_SEGMENTS = 16
EASY, HARD = range(1, 4), range(12, 17)  # the two humps of a bimodal shape

Shares = NDArray[np.float64]


class DistributionError(ValueError):
    """A segment distribution that is not known or does not read."""


def geometric(mean: float) -> Shares:
    """A geometric law cut off at 16 segments, with that mean."""
    low, high = 1e-6, 10.0  # the weight of one more segment; 1 makes every number of segments as likely
    for _ in range(100):
        ratio = (low + high) / 2
        low, high = (ratio, high) if mean_segments(_geometric(ratio)) < mean else (low, ratio)
    return _geometric((low + high) / 2)


def _geometric(ratio: float) -> Shares:
    weight_S = ratio ** np.arange(1.0, MAX_SEGMENTS + 1)
    return weight_S / weight_S.sum()


def mean_segments(share_S: Shares) -> float:
    return float(np.arange(1, len(share_S) + 1) @ share_S)


def bimodal(mean: float) -> Shares:
    """Easy puzzles of 1 to 3 segments mixed with hard ones of 12 to 16, with that mean."""
    hard = (mean - np.mean(EASY)) / (np.mean(HARD) - np.mean(EASY))
    share_S = np.zeros(MAX_SEGMENTS)
    share_S[np.array(EASY) - 1] = (1 - hard) / len(EASY)
    share_S[np.array(HARD) - 1] = hard / len(HARD)
    return share_S


SHAPES: dict[str, Callable[[], Shares]] = {
    "geo3": lambda: geometric(3),
    "geo5": lambda: geometric(5),
    "geo8": lambda: geometric(8),
    "bim3": lambda: bimodal(3),
    "bim5": lambda: bimodal(5),
    "bim8": lambda: bimodal(8),
}


def shares(name: str) -> Shares:
    """A shape by name, or a recorded one: a JSON file from `hrm-bench serve --json`, or of a list of counts."""
    if name in SHAPES:
        return SHAPES[name]()
    if Path(name).is_file():
        return _recorded(Path(name))
    raise DistributionError(f"{name!r} is no segment distribution: name a JSON file or one of {', '.join(SHAPES)}.")


def draw(share_S: Shares, rng: np.random.Generator, num_puzzles: int) -> NDArray[np.int64]:
    """Segments for each of N puzzles."""
    return rng.choice(np.arange(1, len(share_S) + 1), size=num_puzzles, p=share_S)


def _recorded(path: Path) -> Shares:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        counts = content["runs"]["refill"]["segments_histogram"] if isinstance(content, dict) else content
        counts_S = np.array(counts, np.float64)[1:]
    except (ValueError, KeyError, TypeError) as error:
        raise DistributionError(f"{path} holds no segment histogram ({error}): record one with --json.") from error
    if counts_S.ndim != 1 or not counts_S.sum() > 0 or counts_S.min() < 0:
        raise DistributionError(f"{path} holds no counts of segments: give [0, after 1, after 2, ...].")
    return counts_S / counts_S.sum()
