"""A model of the program that Inductor generated, made from its source, and what torchsan makes of it."""

from torchsan.instruments.program.model import Function, Launch, Program
from torchsan.instruments.program.parse import parse

__all__ = ["Function", "Launch", "Program", "parse"]
