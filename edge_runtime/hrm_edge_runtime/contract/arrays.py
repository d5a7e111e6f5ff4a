"""The types of arrays that cross the floors; shapes stand in the names of variables."""

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Shape = tuple[int, ...]
