"""What the wrapper of a graph shows without being run: where kernels are defined and launched, what takes over what."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field

from torchsan.files import count_parts
from torchsan.torch_internals.wrapper import parse
from torchsan.torch_internals.wrapper.model import Alias

log = logging.getLogger(__name__)

_LARGEST = 64 * 2**20
_MOST_PARTS = 300_000
"""Of the code around the kernels, and of a kernel: more than 10,000 launches."""
_QUOTED = re.compile(r"'''(.*?)'''", re.DOTALL)


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
    if len(text) > _LARGEST or count_parts(_QUOTED.sub("", text)) > _MOST_PARTS:
        return Wrapper()
    if any(count_parts(kernel[1]) > _MOST_PARTS for kernel in _QUOTED.finditer(text) if len(kernel[1]) > _MOST_PARTS):
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
