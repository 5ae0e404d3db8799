"""A model of the program that Inductor generated, made from its source, and what torchsan makes of it."""

from __future__ import annotations

from torchsan.torch_internals.wrapper.model import Alias, Allocate, Free, Function, Launch, Program, Return
from torchsan.torch_internals.wrapper.parse import parse

__all__ = ["Alias", "Allocate", "Free", "Function", "Launch", "Program", "Return", "parse"]
