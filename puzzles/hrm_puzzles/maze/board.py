"""The cells of a maze: values in grids, tokens in data sets, and the cells a path may use.

Tokens as in the published HRM data: 0 pad, 1 wall, 2 open, 3 start, 4 goal, 5 path.
"""

from __future__ import annotations

import numpy as np

OPEN, WALL, START, GOAL, PATH = range(5)  # in grids

WALL_TOKEN, OPEN_TOKEN, START_TOKEN, GOAL_TOKEN, PATH_TOKEN = range(1, 6)
VOCAB_SIZE = 6

TOKEN_OF_VALUE = np.array([OPEN_TOKEN, WALL_TOKEN, START_TOKEN, GOAL_TOKEN, PATH_TOKEN], dtype=np.int32)
VALUE_OF_TOKEN = np.array([OPEN, WALL, OPEN, START, GOAL, PATH, OPEN], dtype=np.int8)  # last: beyond the vocabulary
