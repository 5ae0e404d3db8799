"""What watches a program while it runs. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from torchsan.instruments.compiled import observe_programs
from torchsan.instruments.operators import OperatorObserver, observe_operators
from torchsan.torch_internals import check_version

if TYPE_CHECKING:
    from torchsan.instruments.observer import Observer
    from torchsan.recording import Sink

__all__ = ["attach"]


@contextmanager
def attach(writer: Sink, observers: Iterable[Observer]) -> Iterator[None]:
    """Watch this process until the context ends; what is seen goes to `writer` and to the observers."""
    caveat = check_version()
    if caveat is not None:
        writer.skipped("PyTorch", caveat)
    observers = tuple(observers)
    with ExitStack() as stack:
        stack.enter_context(observe_programs(writer, observers))
        for observer in observers:
            if isinstance(observer, OperatorObserver):
                stack.enter_context(observe_operators(observer))
        yield
