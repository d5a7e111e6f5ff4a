"""A priority queue whose members can also leave from the middle, every operation O(log n).

A heap cannot remove from its middle cheaply, so a member that leaves is forgotten at once and its entry dropped when it
surfaces, or when half the heap is such entries (which keeps memory proportional to the living).
"""

import heapq
from typing import Any

Key = tuple[Any, ...]


class LeavingHeap:
    """Ids ordered by a key, smallest first. An id may join once at a time."""

    def __init__(self) -> None:
        self._entries: list[tuple[Key, int]] = []
        self._key_of: dict[int, Key] = {}

    def __len__(self) -> int:
        return len(self._key_of)

    def __contains__(self, member: int) -> bool:
        return member in self._key_of

    def join(self, member: int, key: Key) -> None:
        self._key_of[member] = key
        heapq.heappush(self._entries, (key, member))

    def leave(self, member: int) -> None:
        """Take a member out, wherever it stands; one that is not here is no error."""
        if self._key_of.pop(member, None) is not None and len(self._entries) > 2 * len(self._key_of) + 8:
            self._entries = [(key, living) for living, key in self._key_of.items()]
            heapq.heapify(self._entries)

    def first(self) -> tuple[Key, int] | None:
        """The smallest key and its id, or None when nobody is here."""
        while self._entries and self._key_of.get(self._entries[0][1]) != self._entries[0][0]:
            heapq.heappop(self._entries)
        return self._entries[0] if self._entries else None
