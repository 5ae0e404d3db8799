"""A model of the program that Inductor generated, made from its source, and what torchsan makes of it."""

from torchsan.instruments.program.model import Alias, Allocate, Free, Function, Launch, Program, Return
from torchsan.instruments.program.parse import parse

__all__ = ["Alias", "Allocate", "Free", "Function", "Launch", "Program", "Return", "parse"]
