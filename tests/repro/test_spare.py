"""The process that waits for a script to run by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsan.repro.spare import Spare


def test_a_script_runs_in_its_folder_without_torchsan_and_fails_as_by_itself(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("x = 7")
    (tmp_path / "repro.py").write_text(
        "import sys, beside\nprint(sys.argv, beside.x, 'torchsan' in sys.modules)\nraise SystemError('wrong')\n"
    )
    spare = Spare()
    spare.start()
    status, output = spare.run(tmp_path, 120)
    assert status == 1
    assert output.splitlines() == [
        "['repro.py'] 7 False",
        "Traceback (most recent call last):",
        '  File "repro.py", line 3, in <module>',
        "    raise SystemError('wrong')",
        "SystemError: wrong",
    ]


def test_one_that_hangs_is_ended_and_so_is_one_that_nobody_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchsan.repro.spare._WAIT", "import time; time.sleep(600)")
    spare = Spare()
    assert spare.run(tmp_path, 0.5) == (None, "")
    spare.start()
    spare.stop()
    spare.stop()
