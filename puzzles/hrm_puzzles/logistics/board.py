"""The cells of a city: values in grids, tokens in data sets, and what it costs to enter them.

Grid values: 0 building, a road's cost (1, or congested 2 and 4), 5 depot, 6 customer; 11, 12 and 14 are roads of cost
1, 2 and 4 on the tour. Tokens: 0 pad, 1 building, 2 to 4 roads, 5 depot, 6 customer, 7 to 9 roads on the tour. So an
answer, and a question that reveals a part of it, still tell what every road costs.
"""

from __future__ import annotations

import numpy as np

BUILDING, ROAD, DEPOT, CUSTOMER = 0, 1, 5, 6  # in grids
COSTS = (1, 2, 4)
ON_TOUR = 10  # added to the value of a road

ROAD_TOKENS = (2, 3, 4)
DEPOT_TOKEN, CUSTOMER_TOKEN = 5, 6
TOUR = 5  # added to the token of a road
VOCAB_SIZE = 10
MAX_CUSTOMERS = 8

VALUE_OF_TOKEN = np.array([1, 0, 1, 2, 4, 5, 6, 11, 12, 14, 1], dtype=np.int8)  # last: beyond the vocabulary
TOKEN_OF_VALUE = np.zeros(15, dtype=np.int32)
TOKEN_OF_VALUE[VALUE_OF_TOKEN[1:VOCAB_SIZE]] = np.arange(1, VOCAB_SIZE)
COST_OF_TOKEN = np.array([0, 0, 1, 2, 4, 1, 1, 1, 2, 4, 0], dtype=np.int32)  # 0: cannot be entered
