"""What the wrapper of a graph shows without being run: where kernels are defined and launched, what takes over what."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from torchsan.torch_internals.wrapper import parse
from torchsan.torch_internals.wrapper.model import Alias

log = logging.getLogger(__name__)

_LARGEST = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A kernel that the wrapper defines, in which language, and the lines of its source."""

    name: str
    language: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """`launched` is the line of each launch by its number; `aliases` the variable whose memory another one took."""

    definitions: dict[str, Definition] = field(default_factory=dict)
    launched: dict[int, int] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)


def read_wrapper(text: str) -> Wrapper:
    """Parse a wrapper; what is no wrapper that we understand has nothing in it."""
    if len(text) > _LARGEST:
        return Wrapper()
    try:
        program = parse(text)
    except Exception:  # a stranger's text: whatever is wrong with it, the report goes on without
        log.debug("not a wrapper", exc_info=True)
        return Wrapper()
    steps = [step for function in program.functions.values() for step in function.walk()]
    return Wrapper(
        definitions={
            # Without the lines that hold the quotes.
            k.name: Definition(name=k.name, language=k.language, first=k.lines[0] + 1, last=k.lines[1] - 1)
            for k in program.kernels.values()
            if k.lines[1] - k.lines[0] > 1
        },
        launched={launch.nth: launch.line for launch in program.launches()},
        aliases={s.name: s.source for s in steps if isinstance(s, Alias) and s.name != s.source},
    )
