"""A real S3 server in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

# It ends with whoever holds the other end of its stdin, however that ends: no server is left behind.
_SERVER = """\
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
from moto.server import main
main()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def s3_server(port: int | None = None) -> Iterator[str]:
    """Give the address of a server that keeps what it is given until the context ends."""
    port = port or free_port()
    command = [sys.executable, "-c", _SERVER, "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        endpoint = f"http://127.0.0.1:{port}"
        try:
            _wait_for(endpoint)
            yield endpoint
        finally:
            server.kill()


def _wait_for(endpoint: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(endpoint + "/moto-api/", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
