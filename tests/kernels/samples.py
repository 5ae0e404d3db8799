"""A kernel to referee: what it is, what it should be, an example of its inputs, and what must be said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Sample:
    """`kinds` are findings of severity `error` of which one must be there; empty for a kernel that is right."""

    name: str
    kernel: Callable[..., Any]
    reference: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


class Collection:
    """Samples, in the order in which they were added."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def add(
        self, reference: Callable[..., Any], make: Callable[[], tuple[Any, ...]], *kinds: str
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add the function below."""

        def added(kernel: Callable[..., Any]) -> Callable[..., Any]:
            self.samples.append(Sample(kernel.__name__, kernel, reference, make, kinds))
            return kernel

        return added


def normal(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Numbers as an example has them."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)
