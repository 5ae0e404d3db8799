"""What kinds of findings mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsan.records import Kind
from torchsan.report.explanations import explanation, explanation_text

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kinds.md"


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_is_explained_here_and_in_the_docs(kind: Kind) -> None:
    found = explanation(kind)
    assert found is not None
    assert found.causes
    assert found.remedies
    assert explanation_text(kind, found) in PAGE.read_text(encoding="utf-8"), "copy what `torchsan explain` prints"
