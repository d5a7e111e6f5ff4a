"""Array types that every layer uses. Variable names carry the shapes."""

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Shape = tuple[int, ...]
