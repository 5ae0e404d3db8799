"""What the user changed in Inductor's configuration, as far as it can be written down and set again safely."""

from __future__ import annotations

import re
import sys
from typing import Any

__all__ = ["changed_config", "is_settable"]

# What names files, programs, caches or services: it would do something other than compile differently.
_REFUSED = re.compile(
    r"(^|[._])(log|dir|path|file)|cache|remote|trace|debug|cxx|worker|thread|subprocess|package|autotun|profil"
)
_TEXTS = re.compile(r"cpp\.inject_\w+_bug_TESTING_ONLY")


def changed_config() -> dict[str, Any]:
    """The settings that are not at their default, on this thread, by name: truth values, numbers and known texts."""
    module: Any = sys.modules.get("torch._inductor.config")
    if module is None:
        return {}
    found = {}
    for name in module._config:
        if not module._is_default(name):
            value: Any = module
            for part in name.split("."):
                value = getattr(value, part)
            if is_settable(name, value) and value != module._config[name].default:
                found[name] = value
    return found


def is_settable(name: str, value: Any) -> bool:
    """Whether setting this can only change what is generated, whoever says so."""
    if not re.fullmatch(r"[a-z_]\w*(\.[a-z_]\w*)?", name) or _REFUSED.search(name):
        return False
    return isinstance(value, bool | int | float) or (isinstance(value, str) and bool(_TEXTS.fullmatch(name)))
