"""The checks: they judge what the instruments see, and never patch torch. Importing them imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from torchsan.checks.exhibits import Exhibits
from torchsan.checks.memory.check import MemoryCheck
from torchsan.checks.metadata.check import MetadataCheck
from torchsan.checks.stages.check import StagesCheck
from torchsan.checks.values.check import ValuesCheck
from torchsan.records import Check

if TYPE_CHECKING:
    from torchsan.options import Options
    from torchsan.recording import Writer
    from torchsan.watch.observer import Observer

__all__ = ["observers"]


def observers(options: Options, writer: Writer) -> tuple[Observer, ...]:
    """Return the checks that the options ask for."""
    exhibits = Exhibits(writer, options.max_bytes)
    found: list[Observer] = [exhibits]
    for check in options.check:
        match check:
            case Check.VALUES:
                found.append(ValuesCheck(writer, options.calls, exhibits))
            case Check.STAGES:
                values = Check.VALUES in options.check
                found.append(StagesCheck(writer, options.calls, exhibits, kernels_elsewhere=values))
            case Check.METADATA:
                found.append(MetadataCheck(writer, calls=options.calls, fail_fast=options.fail_fast, exhibits=exhibits))
            case Check.MEMORY:
                guards, fail_fast = not options.no_guards, options.fail_fast
                found.append(MemoryCheck(writer, options.calls, exhibits, guards=guards, fail_fast=fail_fast))
            case _:
                assert_never(check)
    return tuple(found)
