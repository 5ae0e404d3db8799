from __future__ import annotations

from tests.store.conftest import s3_endpoint

__all__ = ["s3_endpoint"]
