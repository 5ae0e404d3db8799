"""What holds for all tests."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.machine import is_fixed, prepare
from torchsan.torch_internals.operators import start_autograd

# A shell that starts the tests in the background, or nohup, ignores these for them and for all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How fast examples are made depends on what else the machine does.
settings.register_profile("torchsan", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("torchsan")

_SLOW_LIMIT = 1800
"""Seconds for one test marked slow; the others have what pyproject.toml says."""

_prepared: str | None = None


def pytest_configure(config: pytest.Config) -> None:
    """Prepare once, before workers start: they inherit the environment."""
    global _prepared
    if not hasattr(config, "workerinput"):
        _prepared = prepare()
    start_autograd()  # Tests trace graphs by themselves, and later ones fork.


def pytest_report_header() -> list[str]:
    """Say what was prepared."""
    return [_prepared] if _prepared else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests more time, and leave out those that show a bug which this PyTorch no longer has."""
    for item in items:
        for marker in item.iter_markers("fixed_in"):
            if is_fixed(marker.args[0]):
                item.add_marker(pytest.mark.skip(reason=f"PyTorch {marker.args[0]} fixed it"))
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_LIMIT))
