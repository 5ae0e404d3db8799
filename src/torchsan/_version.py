"""The version, in this place only: the build reads it from here, and every layer can import it."""

__version__ = "0.1.0"
