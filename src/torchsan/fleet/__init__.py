"""What do many runs say? The recordings of ranks, hosts and days as tables, and one report over all of them.

DuckDB does the heavy lifting: it is embedded, and the files that it writes serve Spark, Ray Data or Athena as well.
Importing it imports neither torch nor DuckDB.
"""

from __future__ import annotations

from torchsan.fleet.places import find_recordings, several
from torchsan.fleet.tables import Tables

__all__ = ["Tables", "find_recordings", "several"]
