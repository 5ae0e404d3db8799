"""From a finding and its exhibit to a folder with a reproducer."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torchsan.errors import TorchsanError, UsageError
from torchsan.graphs.operators import require_operators
from torchsan.recording import Reader
from torchsan.recording.folder import write_atomically
from torchsan.records import Exhibit, Finding, Given
from torchsan.report.tables import count
from torchsan.repro.exhibits import Wanted
from torchsan.repro.reduce import mapped, reduce
from torchsan.repro.render import readme, render, title
from torchsan.repro.trial_server import Stopped, TrialServer
from torchsan.repro.trials import STATE, Limits, Runner, Trials, Verdict, elements, key_of, verify
from torchsan.repro.values import Tensors, write_safetensors
from torchsan.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A folder with a reproducer; truthy if it is verified. `stopped` says why it may not be the smallest."""

    folder: Path
    finding: Finding
    nodes: int
    lines: int
    trials: int
    verdict: Verdict
    stopped: str | None

    def __bool__(self) -> bool:
        return bool(self.verdict)


def make(
    wanted: Wanted,
    out: Path,
    server: TrialServer,
    limits: Limits,
    progress: Callable[[str], None],
    *,
    with_store: bool = False,
) -> Made:
    """Make a reproducer in the folder `out`. Raise UsageError where it cannot be written, or an operator is missing.

    With `with_store` the script takes its tensors from a store beside it.
    """
    require_operators(wanted.exhibit)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        message = f"cannot write to {out}: {e.strerror or e}; choose another --out"
        raise UsageError(message, slug="unwritable-out") from e
    out = out.absolute()
    runner = Runner(server=server, finding=wanted.finding, checks=wanted.checks, loads=wanted.loads.modules)
    with (
        tempfile.TemporaryDirectory(prefix="torchsan-repro-", ignore_cleanup_errors=True) as work,
        Store(Path(work) / "tensors") as store,
    ):
        script = _Script(wanted, Tensors(store))
        attempt = _Attempt(wanted, script, runner, Path(work), out, limits, progress)
        best, stopped = attempt.reduce(_copied(wanted.exhibit, wanted.recording, store))
        text = script.write(best, out, store=with_store)
    progress("verifying")
    verdict = verify(out, runner, limits.trial)
    about = readme(best, wanted.finding, wanted.recording.manifest, verdict, text, wanted.loads.modules)
    write_atomically(out / "README.md", about)
    if stopped is None:
        (out / STATE).unlink(missing_ok=True)
    return Made(
        folder=out,
        finding=wanted.finding,
        nodes=len(best.nodes),
        lines=len(text.splitlines()),
        trials=attempt.trials.count,
        verdict=verdict,
        stopped=stopped,
    )


def _copied(exhibit: Exhibit, recording: Reader, store: Store) -> Exhibit:
    """Put the tensors of the recording into a store of our own: the recording is only read."""
    names: dict[str, str] = {}
    with Store(recording.store) as source:

        def copied(given: Given) -> Given:
            if given.stored is None:
                return given
            if given.stored not in names:
                names[given.stored] = f"input/{len(names)}"
                store.put(names[given.stored], source.get(given.stored, device="cpu").detach())
            return replace(given, stored=names[given.stored])

        return mapped(exhibit, copied)


@dataclass(frozen=True, slots=True)
class _Script:
    """Writes candidates as scripts, with what they need beside them."""

    wanted: Wanted
    tensors: Tensors

    def write(self, candidate: Exhibit, folder: Path, *, store: bool = False) -> str:
        """Write the script, in the place of one that may be there, and return it."""
        finding, loads = self.wanted.finding, self.wanted.loads
        script = render(candidate, finding, self.tensors, title(finding, candidate), loads.modules, store=store)
        loads.copy_to(folder)
        (folder / "data.safetensors").unlink(missing_ok=True)
        shutil.rmtree(folder / "tensors", ignore_errors=True)
        if script.data and store:
            with Store(folder / "tensors") as target:
                target.put_many(script.data)
        elif script.data:
            write_safetensors(folder / "data.safetensors", script.data)
        (folder / "repro.py").write_text(script.text, encoding="utf-8")
        return script.text


class _Attempt:
    """Makes an exhibit smaller, and remembers the trials in `out`, so that another attempt goes on from there."""

    def __init__(
        self,
        wanted: Wanted,
        script: _Script,
        runner: Runner,
        work: Path,
        out: Path,
        limits: Limits,
        progress: Callable[[str], None],
    ) -> None:
        self._script = script
        self._runner = runner
        self._work = work
        self._state = out / STATE
        self._exhibit = key_of(wanted.exhibit)
        self._limits = limits
        self._progress = progress
        self.trials: Trials[Exhibit] = Trials(
            self._shows,
            work,
            limits,
            key=key_of,
            describe=lambda c: f"{count(len(c.nodes), 'node')}, {count(elements(c), 'element')}",
            progress=progress,
            known=self._load(),
        )

    def _shows(self, candidate: Exhibit, folder: Path, limit: float) -> bool:
        """Whether the candidate shows the finding. One that crashes or cannot be written does not."""
        try:
            self._script.write(candidate, folder)
        except (TorchsanError, RuntimeError, TypeError, ValueError, KeyError, OSError):
            return False
        return self._runner.under_torchsan(folder, limit) is not None

    def reduce(self, exhibit: Exhibit) -> tuple[Exhibit, str | None]:
        """Return the smallest candidate that shows the finding, and why it may not be the smallest there is."""
        smallest = exhibit

        def better(candidate: Exhibit) -> None:
            nonlocal smallest
            smallest = candidate
            self._save()

        try:
            values = self._runner.evaluate(exhibit, self._work, self._limits.trial)
            found = reduce(exhibit, values, self._script.tensors, self.trials.first, better)
            return smallest, None if found is not None else "it does not show the finding by itself"
        except Stopped as e:
            return smallest, str(e)
        except KeyboardInterrupt:
            self._progress("interrupted; keeping the smallest so far")
            return smallest, "interrupted"
        finally:
            self.trials.close()
            self._save()

    def _load(self) -> dict[str, bool]:
        try:
            state = json.loads(self._state.read_text())
            if state["exhibit"] == self._exhibit:
                known = {str(k): bool(v) for k, v in state["trials"].items()}
                self._progress(f"going on after {len(known)} trials of an earlier attempt")
                return known
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # No earlier attempt, or none that can be read.
        return {}

    def _save(self) -> None:
        write_atomically(self._state, json.dumps({"exhibit": self._exhibit, "trials": dict(self.trials.known)}))
