"""AOTInductor packages: built so that they record their launches by themselves, and read back. Imports no torch."""

from __future__ import annotations
