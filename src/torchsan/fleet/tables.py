"""Many recordings as tables of DuckDB: made by several processes, kept as Parquet files, asked in SQL."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torchsan.errors import UsageError
from torchsan.fleet.rows import COLUMNS, Row, rows_of

if TYPE_CHECKING:
    import duckdb

_FEW = 8
"""Recordings up to which it is quicker to read them here."""


class Tables:
    """The tables `runs`, `findings` and `kernels` of some recordings, for as long as the context of `read` lasts."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    @classmethod
    @contextmanager
    def read(cls, places: Sequence[str], progress: TextIO | None = None) -> Iterator[Tables]:
        """Read recordings into tables. Raise UsageError without DuckDB. What is read goes through files, so that
        memory does not grow with the number of recordings."""
        duckdb = _duckdb()
        with tempfile.TemporaryDirectory(prefix="torchsan-fleet-") as folder:
            files = {name: Path(folder, f"{name}.json") for name in COLUMNS}
            streams = {name: file.open("w", encoding="utf-8") for name, file in files.items()}
            try:
                for n, rows in enumerate(_rows_of_all(places), start=1):
                    for name, many in rows.items():
                        streams[name].writelines(f"{_json(row)}\n" for row in many)
                    _show(progress, n, len(places))
            finally:
                for stream in streams.values():
                    stream.close()
            with duckdb.connect() as connection:
                connection.execute("SET memory_limit = '512MB'")
                connection.execute(f"SET temp_directory = {_text(folder)}")
                for name, file in files.items():
                    columns = ", ".join(f"{_text(c)}: {_text(t)}" for c, t in COLUMNS[name].items())
                    connection.execute(
                        f"CREATE TABLE {name} AS SELECT * FROM read_json({_text(str(file))}, "
                        f"format = 'newline_delimited', columns = {{{columns}}})"
                    )
                yield cls(connection)

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return what a query in SQL gives."""
        done = self._connection.execute(query, list(parameters))
        names = [column[0] for column in done.description or ()]
        return [dict(zip(names, row, strict=True)) for row in done.fetchall()]

    def write_parquet(self, folder: Path) -> list[Path]:
        """Write each table to a file in `folder`, which is made if it is not there; return the files.

        Raise OSError for a place that cannot be written to.
        """
        try:
            str(folder).encode()
        except UnicodeEncodeError:
            raise OSError(errno.EILSEQ, "DuckDB takes only names that are UTF-8") from None
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name in COLUMNS:
            file = folder / f"{name}.parquet"
            temporary = folder / f".{name}.{os.getpid()}.parquet"
            try:
                self._connection.execute(f"COPY {name} TO {_text(str(temporary))} (FORMAT parquet, COMPRESSION zstd)")
                temporary.replace(file)
            finally:
                temporary.unlink(missing_ok=True)
            files.append(file)
        return files


def _rows_of_all(places: Sequence[str]) -> Iterator[dict[str, list[Row]]]:
    """The rows of each recording, in any order; a few at a time are under way, so that none wait in memory."""
    workers = min(os.cpu_count() or 1, 16)
    if len(places) <= _FEW or workers == 1:
        yield from map(rows_of, places)
        return
    rest = iter(places)
    # Fresh processes: whoever asks may have threads, with which forking is not safe.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting: set[Future[dict[str, list[Row]]]]
        waiting = {pool.submit(rows_of, place) for place in islice(rest, 4 * workers)}
        while waiting:
            done, waiting = wait(waiting, return_when="FIRST_COMPLETED")
            waiting |= {pool.submit(rows_of, place) for place in islice(rest, len(done))}
            for future in done:
                yield future.result()


def _json(row: Row) -> str:
    # Texts of a recording may hold lone surrogates, which UTF-8 lacks.
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace").decode()


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _show(progress: TextIO | None, n: int, total: int) -> None:
    if progress is not None and (n % 20 == 0 or n == total):
        progress.write(f"\rtorchsan: read {n} of {total} recordings" + ("\n" if n == total else ""))
        progress.flush()


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError:
        raise UsageError(
            f"reports over many recordings need DuckDB: `{Path(sys.executable).name} -m pip install 'torchsan[fleet]'`",
            slug="no-duckdb",
        ) from None
    return duckdb
