"""Do the checks work with this PyTorch? Tries each on a planted fault and on its clean twin, in a process of its own.

A changed PyTorch may have every private name that torchsan needs and still behave differently. So a small program is
compiled twice: as it is, and with a fault for each check planted into it. A check that does not report its fault, or
that reports one where there is none, is off from then on, with that as the reason. `torchsan doctor --canary` tries,
and `torchsan run` does the first time, beside the program. Importing this module imports no torch.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from torchsan.errors import UnsupportedTorchError, in_one_line
from torchsan.records import Check, Finding, Kind, Severity, Skipped
from torchsan.torch_internals.seams import called, check_version
from torchsan.torch_internals.tried import SWITCH, Tried, as_text, keep, last_try, parse_answer

if TYPE_CHECKING:
    import torch

_BESIDE = 15.0
"""Seconds that it may take beside the first run of a program."""
_MOST_SECONDS = 300.0
_MOST_TRIES = 3
"""How many unfinished tries beside programs there are before it is left to `torchsan doctor --canary`."""

_ANSWER, _SAID = "answer.json", "errors.txt"
"""What it writes to standard output and to standard error, in its folder."""

PLANTED: dict[Check, Kind] = {
    Check.VALUES: Kind.WRONG_VALUES,
    Check.STAGES: Kind.WRONG_VALUES,
    Check.METADATA: Kind.METADATA_MISMATCH,
    Check.MEMORY: Kind.UNINITIALIZED_READ,
}
"""What each check has to say of its planted fault."""


class Trial:
    """A process that tries the checks, in a folder of its own, so that nothing of it stays in a cache of Inductor's."""

    def __init__(self, *, gently: bool = False) -> None:
        """Start it; `gently` lets everything else on this machine go first."""
        self._started = time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="torchsan-canary-"))
        child = Path(__file__).parent / "cli" / "_child.py"
        command = [sys.executable, str(child), "", "-1", "-m", "torchsan.canary", str(int(gently))]
        # What is set for the program's own compiles, or for its threads, is not for this.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "OMP_", "PYTORCH"))}
        environment |= {
            "TORCHINDUCTOR_CACHE_DIR": str(self._folder),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            # Half of its time, and nothing that a check looks at: headers compiled once for all programs to come (in a
            # folder that would stay), and trials of which vector instructions the compiler knows.
            "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
            "TORCHINDUCTOR_VEC_ISA_OK": "0",
            SWITCH: "off",
        }
        with (self._folder / _ANSWER).open("wb") as answer, (self._folder / _SAID).open("wb") as said:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for the program; and its compilers end with it.
            )

    def answer(self, within: float) -> Tried | str:
        """Return what it found out, or why it did not, within so many seconds from its start. It has ended then.

        Without an answer nothing is known of the checks: a full disk, or a missing compiler, is not their fault.
        """
        try:
            self._process.wait(max(0.0, self._started + within - time.monotonic()))
            answer = parse_answer((self._folder / _ANSWER).read_text(encoding="utf-8"))
            return Tried(failures=answer.failures, seconds=time.monotonic() - self._started)
        except subprocess.TimeoutExpired:
            return f"it took more than {within:.0f} s"
        except (OSError, ValueError):
            said = self._said()
            return f"it ended with status {self._process.returncode}: {said[-1][:200] if said else 'without a word'}"
        finally:
            self.close()

    def _said(self) -> list[str]:
        with suppress(OSError):
            return (self._folder / _SAID).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return []

    def close(self) -> None:
        """End it, with all that it started, and remove its folder. Does nothing the second time."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def try_checks() -> Tried:
    """Try every check, and keep the answer for the runs to come. Without one nothing is kept, and all of them fail."""
    tried = Trial().answer(_MOST_SECONDS)
    if isinstance(tried, str):
        return Tried(failures=dict.fromkeys(map(str, PLANTED), f"the canary did not get to try it: {tried}"))
    keep(tried)
    return tried


class Beside:
    """Tries the checks beside the first program that runs with a PyTorch; for later ones the answer is known."""

    def __init__(self, checks: Collection[str]) -> None:
        """Start a trial if one of the `checks` of this run needs it, nothing is known, and the answer can be kept."""
        self._checks = checks
        self._trial: Trial | None = None
        self._known = last_try()
        if not checks or os.name != "posix" or os.environ.get(SWITCH) == "off":
            return
        before = self._known.unfinished if self._known is not None else 0
        # Written first: a home that cannot be written to would have it tried beside every program.
        if (self._known is None or 0 < before < _MOST_TRIES) and keep(Tried(unfinished=before + 1)):
            with suppress(OSError):
                self._trial = Trial(gently=True)

    def finish(self) -> list[Skipped]:
        """The program has ended: return what of it was not checked after all.

        A PyTorch that torchsan was tested with is not waited for, and its trial ended; for another one there is the
        rest of the time, since its checks mean nothing before they were tried.
        """
        caveat = untested()
        if self._trial is not None:
            tried = self._trial.answer(_BESIDE if caveat else 0.0)
            self._trial = None
            if isinstance(tried, Tried):
                keep(tried)
                return [Skipped(what=called(c), reason=tried.failures[c]) for c in self._checks if c in tried.failures]
        known = self._known is not None and not self._known.unfinished
        if caveat is None or known or not self._checks or os.environ.get(SWITCH) == "off":
            return []
        reason = (
            "not tested with this version, and not tried yet whether the checks work: run `torchsan doctor --canary`"
        )
        return [Skipped(what="PyTorch", reason=reason)]

    def close(self) -> None:
        """End what is still going on. Does nothing the second time."""
        if self._trial is not None:
            self._trial.close()


def untested() -> str | None:
    """What is to be said of a PyTorch that torchsan is not tested with; None of one that it is."""
    try:
        return check_version()
    except UnsupportedTorchError:
        return None  # The run has said so.


# What follows runs in the process that tries.


def _main(gently: bool) -> None:
    if gently:
        os.nice(10)
        # The program may go on for days: this ends by itself, with the compilers that it has started.
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, _BESIDE)
    clean, wrong = _run(planted=False), _run(planted=True)
    if failure := clean.failure or wrong.failure:
        raise SystemExit(f"its program fails: {failure}")
    failures = {check.value: reason for check in PLANTED if (reason := _why_not(check, clean, wrong)) is not None}
    sys.stdout.write(as_text(Tried(failures=failures)))
    sys.stdout.flush()
    os._exit(0)  # PyTorch has threads and compilers that would take their time.


def _why_not(check: Check, clean: _Outcome, wrong: _Outcome) -> str | None:
    """Why a check is not to be trusted here; None if it is."""
    false = [f for f in clean.errors if f.check is check]
    if false:
        return f"it finds {false[0].kind} in a program of the canary's that is right: {false[0].message[:160]}"
    if check not in wrong.planted:
        return "the canary could not plant a fault for it: what Inductor generates has changed"
    if not any(f.check is check and f.kind is PLANTED[check] for f in wrong.errors):
        return f"it does not find the {PLANTED[check]} that the canary planted: this PyTorch behaves differently"
    return None


class _Outcome:
    """What one run of the program gave."""

    def __init__(self) -> None:
        self.errors: list[Finding] = []
        self.planted: set[Check] = set()
        self.failure: str | None = None


def _run(*, planted: bool) -> _Outcome:
    import torch

    from torchsan.session import session

    outcome = _Outcome()
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(16, 16, generator=generator) for _ in range(2))
    try:
        with session(check=",".join(PLANTED)) as run, _faults(outcome) if planted else nullcontext():
            _turn(x, wrong=planted)
            torch.compile(_program)(x, w)
    except Exception as e:  # noqa: BLE001  # whatever it is, it is the answer
        outcome.failure = in_one_line(e)
    outcome.errors = [f for f in run.findings if f.severity is Severity.ERROR]
    return outcome


def _program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[:, :5].sin() * 0.5, (x @ w).exp()


@contextmanager
def _faults(outcome: _Outcome) -> Iterator[None]:
    """Plant what the checks of compiled programs have to find."""
    import torch

    from torchsan.torch_internals.inductor import changed_compiles

    def generated(source: str) -> str:
        source, other_function = re.subn(r"\bsin\(", "cos(", source)
        half = r"extern_kernels.mm(\1[:8], \2, out=\3[:8])"
        source, half_a_product = re.subn(r"extern_kernels\.mm\((\w+), (\w+), out=(\w+)\)", half, source)
        outcome.planted |= {Check.VALUES} if other_function else set()
        outcome.planted |= {Check.MEMORY} if half_a_product else set()
        return source

    def other_factor(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.target is torch.ops.aten.mul.Tensor:
                node.args = (node.args[0], 0.25)
                outcome.planted.add(Check.STAGES)

    with changed_compiles(generated, other_factor):
        yield
    outcome.planted.add(Check.METADATA)


def _turn(x: torch.Tensor, *, wrong: bool) -> None:
    """Call an operator whose result has the strides of the transposed; if it is `wrong`, its fake kernel has not."""
    import torch

    name = f"torchsan_canary::turn{int(wrong)}"

    def turn(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().t()

    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(name, "CPU", turn)
    torch.library.register_fake(name, torch.empty_like if wrong else turn)
    getattr(torch.ops.torchsan_canary, f"turn{int(wrong)}")(x)


if __name__ == "__main__":
    _main(sys.argv[1] == "1")
