"""Messages that belong to no request, kept for a while: it may be registered late, or someone may want to see."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from himalia.jupyter.wire import KernelMessage


class Orphan(msgspec.Struct, frozen=True, gc=False):
    message: KernelMessage
    age_s: float


class _Kept:
    __slots__ = ("at_s", "message", "next")

    def __init__(self, message: KernelMessage, at_s: float) -> None:
        self.message = message
        self.at_s = at_s
        # The next one of the same parent, by number; 0 is none.
        self.next = 0


class OrphanBuffer:
    """Keeps the newest orphans, within a number and a size. Adding and dropping one are O(1), and claiming those of
    a parent takes no longer than there are of them. Not thread-safe: the broker's lock guards it.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        """With ``messages_max`` 0 nothing is kept. A single message may be larger than ``bytes_max``."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        # The first and the last of each parent, by number.
        self._ends: dict[str, tuple[int, int]] = {}
        self._number = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, message: KernelMessage, now_s: float) -> int:
        """Keep a message; returns how many were evicted for it."""
        self._number += 1
        number, parent_id = self._number, message.parent_id
        ends = self._ends.get(parent_id)
        if ends is None:
            self._ends[parent_id] = (number, number)
        else:
            self._kept[ends[1]].next = number
            self._ends[parent_id] = (ends[0], number)
        self._kept[number] = _Kept(message, now_s)
        self.size_bytes += message.size_bytes
        evicted = 0
        while len(self._kept) > self._messages_max or (
            self.size_bytes > self._bytes_max and len(self._kept) > 1
        ):
            self._drop_oldest()
            evicted += 1
        return evicted

    def claim(self, parent_id: str) -> list[KernelMessage]:
        """Take out all messages of this parent, in order of arrival."""
        claimed = []
        number, _ = self._ends.pop(parent_id, (0, 0))
        while number:
            kept = self._kept.pop(number)
            self.size_bytes -= kept.message.size_bytes
            claimed.append(kept.message)
            number = kept.next
        return claimed

    def expire(self, before_s: float) -> list[KernelMessage]:
        """Drop, and return, what was kept before this time."""
        expired = []
        while self._kept and next(iter(self._kept.values())).at_s < before_s:
            expired.append(self._drop_oldest())
        return expired

    def kept(self, now_s: float) -> list[Orphan]:
        """What is kept, in order of arrival."""
        return [Orphan(kept.message, now_s - kept.at_s) for kept in self._kept.values()]

    def _drop_oldest(self) -> KernelMessage:
        _, kept = self._kept.popitem(last=False)
        message = kept.message
        self.size_bytes -= message.size_bytes
        # The oldest of all is also the oldest of its parent.
        if kept.next:
            self._ends[message.parent_id] = (kept.next, self._ends[message.parent_id][1])
        else:
            del self._ends[message.parent_id]
        return message
