"""Limits on the number of kernels: in all, and for each owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from himalia.errors import TooManyKernels
from himalia.kernels.kernel import Kernel


class KernelQuota:
    """Counts the kernels of a host, with those that are being started. Belongs to the event loop."""

    def __init__(self, kernels: Mapping[str, Kernel], kernels_max: int) -> None:
        self._kernels = kernels
        self._kernels_max = kernels_max
        self._starting = 0
        self._starting_of: Counter[str] = Counter()

    @contextmanager
    def reserve_for(self, owner: str | None, owner_max: int | None) -> Iterator[None]:
        """Count one more kernel of an owner, while it is started or attached. ``TooManyKernels`` beyond its limit."""
        name = owner or ""
        if owner_max is not None:
            count = sum(kernel.owner == owner for kernel in self._kernels.values()) + self._starting_of[name]
            if count >= owner_max:
                raise TooManyKernels(
                    f"{owner!r} has {count} kernels, its limit; stop one first", limit=owner_max
                )
        self._starting_of[name] += 1
        try:
            yield
        finally:
            self._starting_of[name] -= 1
            if not self._starting_of[name]:
                del self._starting_of[name]

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Count one more kernel while it is started. ``TooManyKernels`` beyond the host's limit."""
        self.check()
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1

    def check(self) -> None:
        """Raise ``TooManyKernels`` if the host has as many kernels as it may have."""
        if len(self._kernels) + self._starting >= self._kernels_max:
            raise TooManyKernels(
                f"{self._kernels_max} kernels run, the limit; stop some or raise kernels_max",
                limit=self._kernels_max,
            )
