"""The carry as ONNX Runtime sees it: rows of one tensor, in this process's memory or on a device.

Shapes: B slots. A binding names the first rows of a tensor by its address; a move copies one row over another.
"""

from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

Address = tuple[str, int, Any, list[int], int]
DEVICE_ID = 0


class Rows(Protocol):
    """`num_slots` rows of one tensor."""

    def address(self, num_rows: int) -> Address:
        """Device, its number, type, shape and pointer of the first rows, as a binding takes them."""
        ...

    def move(self, source: int, target: int) -> None:
        """Copy a row over another."""
        ...

    def read(self, num_rows: int) -> NDArray[Any]:
        """The first rows; a view or a copy."""
        ...


class HostRows:
    """Rows in a numpy array."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.array = np.zeros(shape, dtype)

    def address(self, num_rows: int) -> Address:
        rows = self.array[:num_rows]
        return "cpu", 0, rows.dtype.type, list(rows.shape), rows.ctypes.data

    def move(self, source: int, target: int) -> None:
        self.array[target] = self.array[source]

    def read(self, num_rows: int) -> NDArray[Any]:
        return self.array[:num_rows]


class DeviceRows:
    """Rows that ONNX Runtime allocated on a device and that stay there from segment to segment.

    Its Python interface copies whole tensors only, so a move goes through the host: it happens when a puzzle halts and
    none waits in line.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, device: str) -> None:
        self._device = device
        self._shape, self._dtype = shape, dtype
        self._value = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype), device, DEVICE_ID)

    def address(self, num_rows: int) -> Address:
        return self._device, DEVICE_ID, self._dtype, [num_rows, *self._shape[1:]], self._value.data_ptr()

    def move(self, source: int, target: int) -> None:
        array = self._value.numpy().copy()
        array[target] = array[source]
        self._value.update_inplace(array)

    def read(self, num_rows: int) -> NDArray[Any]:
        return self._value.numpy()[:num_rows]
