"""From a recording to a folder with a reproducer."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchsan.errors import UsageError
from torchsan.recording import Reader
from torchsan.recording.folder import write_atomically
from torchsan.records import Exhibit, Finding, Given
from torchsan.repro.exhibits import Loads, choose_finding, overflow_of, read_exhibit, require_modules
from torchsan.repro.trial_server import Stopped, TrialServer
from torchsan.repro.trials import Trials, key_of

if TYPE_CHECKING:
    from torchsan.repro.values import Tensors
    from torchsan.repro.verify import Verdict

_STATE = "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to make, and how long to try. `out` is the folder; `limit` is for one trial, `total` for all, in seconds."""

    recording: Reader
    finding: str | None
    out: Path | None
    loads: Loads
    with_store: bool = False
    jobs: int = 2
    limit: float = 120.0
    total: float = 900.0


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


def make(wanted: Wanted, zygote: TrialServer, progress: Callable[[str], None]) -> Made:
    """Make a reproducer. Raise UsageError where there is nothing to make one from, or nowhere to put it."""
    recording = wanted.recording
    finding = choose_finding(recording, wanted.finding)
    exhibit = read_exhibit(recording, finding)
    require_modules(exhibit, wanted.loads.modules)
    out = _prepare(wanted.out or Path("torchsan-repros") / f"{recording.path.name}-{finding.id}")
    zygote.get_ready()
    from torchsan.graphs.rebuild import require_operators

    require_operators(exhibit)
    with tempfile.TemporaryDirectory(prefix="torchsan-repro-", ignore_cleanup_errors=True) as work:
        return _Maker(wanted, recording, finding, out, Path(work), progress).make(exhibit, zygote)


def _prepare(out: Path) -> Path:
    """The folder to write to: a new one, an empty one, or one where an earlier attempt was interrupted."""
    if out.is_dir() and any(out.iterdir()) and not (out / _STATE).is_file():
        raise UsageError(f"{out} is not empty; choose another folder with --out", slug="out-exists")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(
            f"cannot write to {out}: {e.strerror or e}; choose another --out", slug="unwritable-out"
        ) from e
    return out.absolute()


class _Maker:
    def __init__(
        self,
        wanted: Wanted,
        recording: Reader,
        finding: Finding,
        out: Path,
        work: Path,
        progress: Callable[[str], None],
    ) -> None:
        from torchsan.repro.values import Tensors
        from torchsan.store import Store

        self._wanted = wanted
        self._recording = recording
        self._finding = finding
        self._out = out
        self._work = work
        self._progress = progress
        self._store = Store(work / "tensors")
        self._tensors: Tensors = Tensors(self._store)
        # Without guard zones a program that writes out of bounds does something else each time.
        guards = overflow_of(finding, recording.findings()) is not None
        self._checks = tuple(dict.fromkeys([str(finding.check), *(["memory"] if guards else [])]))

    def make(self, exhibit: Exhibit, zygote: TrialServer) -> Made:
        best, stopped, trials = exhibit, None, self._trials(exhibit, zygote)
        try:
            best, stopped = self._reduce(exhibit, trials)
        finally:
            trials.close()
        script = self._write(best, self._out, store=self._wanted.with_store)
        self._progress("verifying")
        from torchsan.repro.readme import readme
        from torchsan.repro.verify import verify

        verdict = verify(self._out, self._finding, self._checks, self._wanted.loads, zygote, self._wanted.limit)
        modules = self._wanted.loads.modules
        text = readme(best, self._finding, self._recording.manifest, verdict, script, modules)
        write_atomically(self._out / "README.md", text)
        if stopped is None:
            (self._out / _STATE).unlink(missing_ok=True)
        return Made(
            folder=self._out,
            finding=self._finding,
            nodes=len(best.nodes),
            lines=len(script.splitlines()),
            trials=trials.count,
            verdict=verdict,
            stopped=stopped,
        )

    def _reduce(self, exhibit: Exhibit, trials: Trials) -> tuple[Exhibit, str | None]:
        from torchsan.repro.reduce import reduce

        smallest = [exhibit]

        def better(candidate: Exhibit) -> None:
            smallest.append(candidate)
            self._save(trials, exhibit)

        try:
            exhibit = smallest[0] = self._copied(exhibit)
            values = trials.evaluate(exhibit, self._work)
            found = reduce(exhibit, values, self._tensors, trials, better)
            return (found, None) if found is not None else (exhibit, "it does not show the finding by itself")
        except Stopped as e:
            return smallest[-1], str(e)
        except KeyboardInterrupt:
            self._progress("interrupted; keeping the smallest so far")
            return smallest[-1], "interrupted"
        finally:
            self._save(trials, exhibit)

    def _trials(self, exhibit: Exhibit, zygote: TrialServer) -> Trials:
        known: dict[str, bool] = {}
        try:
            state = json.loads((self._out / _STATE).read_text())
            if state["exhibit"] == key_of(exhibit):
                known = {str(k): bool(v) for k, v in state["trials"].items()}
                self._progress(f"going on after {len(known)} trials of an earlier attempt")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # No earlier attempt, or none that can be read.
        self._state = key_of(exhibit)
        return Trials(
            self._finding,
            zygote,
            self._work,
            write=lambda candidate, folder: (self._write(candidate, folder), "repro.py")[1],
            checks=self._checks,
            loads=self._wanted.loads.modules,
            limit=self._wanted.limit,
            deadline=time.monotonic() + self._wanted.total,
            jobs=self._wanted.jobs,
            progress=self._progress,
            known=known,
        )

    def _save(self, trials: Trials, exhibit: Exhibit) -> None:
        state = {"exhibit": self._state, "trials": dict(trials.known)}
        write_atomically(self._out / _STATE, json.dumps(state))

    def _copied(self, exhibit: Exhibit) -> Exhibit:
        """Put the tensors of the recording into a store of our own: the recording is only read."""
        from torchsan.store import Store

        names: dict[str, str] = {}
        with Store(self._recording.store) as source:

            def copied(given: Given) -> Given:
                if given.stored is None:
                    return given
                if given.stored not in names:
                    names[given.stored] = f"input/{len(names)}"
                    self._store.put(names[given.stored], source.get(given.stored, device="cpu").detach())
                return replace(given, stored=names[given.stored])

            return replace(
                exhibit,
                inputs=tuple(copied(g) for g in exhibit.inputs),
                earlier=tuple(tuple(copied(g) for g in call) for call in exhibit.earlier),
            )

    def _write(self, candidate: Exhibit, folder: Path, *, store: bool = False) -> str:
        from torchsan.repro.readme import title
        from torchsan.repro.render import render
        from torchsan.repro.values import write_safetensors
        from torchsan.store import Store

        heading = title(self._finding, candidate)
        modules = self._wanted.loads.modules
        script = render(candidate, self._finding, self._tensors, heading, modules, store=store)
        self._wanted.loads.copy_to(folder)
        for old in ("data.safetensors", "tensors"):
            if folder != self._work and (folder / old).exists():
                shutil.rmtree(folder / old) if (folder / old).is_dir() else (folder / old).unlink()
        if script.data and store:
            with Store(folder / "tensors") as target:
                target.put_many(script.data)
        elif script.data:
            write_safetensors(folder / "data.safetensors", script.data)
        (folder / "repro.py").write_text(script.text, encoding="utf-8")
        return script.text
