"""What watches a program while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchsan.options import Options
from torchsan.recording import Writer


@contextmanager
def attach(writer: Writer, options: Options) -> Iterator[None]:
    """Watch this process until the context ends; everything seen goes to `writer`."""
    yield
