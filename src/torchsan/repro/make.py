"""From a finding and its exhibit to a folder with a reproducer."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torchsan.errors import TorchsanError, UsageError
from torchsan.graphs.rebuild import require_operators
from torchsan.recording import Reader
from torchsan.recording.folder import write_atomically
from torchsan.records import Exhibit, Given
from torchsan.report.findings import count
from torchsan.repro.exhibits import Wanted
from torchsan.repro.reduce import mapped, reduce
from torchsan.repro.render import readme, render
from torchsan.repro.trial_server import Stopped, TrialServer
from torchsan.repro.trials import STATE, Limits, Made, Runner, Trials, elements, key_of, verify
from torchsan.repro.values import Tensors, write_safetensors
from torchsan.store import Store


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
        maker = _Maker(wanted, Tensors(store), runner, Path(work), out / STATE, limits, progress)
        best, stopped, trials = maker.reduce(_copied(wanted.exhibit, wanted.recording, store))
        text = maker.write(best, out, store=with_store)
    progress("verifying")
    verdict = verify(out, runner, limits.trial)
    about = readme(best, wanted.finding, wanted.recording.manifest, verdict, text, wanted.loads.modules)
    write_atomically(out / "README.md", about)
    if stopped is None:
        (out / STATE).unlink(missing_ok=True)
    return Made(
        file=out / "repro.py",
        content=count(len(best.nodes), "operator call"),
        trials=trials,
        verified=bool(verdict),
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
class _Maker:
    """Makes an exhibit smaller. The file `state` keeps what came of trials, for another attempt to go on from there."""

    wanted: Wanted
    tensors: Tensors
    runner: Runner
    work: Path
    state: Path
    limits: Limits
    progress: Callable[[str], None]

    def write(self, candidate: Exhibit, folder: Path, *, store: bool = False) -> str:
        """Write the script, with what it needs beside it, in the place of one that may be there; return it."""
        loads = self.wanted.loads
        script = render(candidate, self.wanted.finding, self.tensors, loads.modules, store=store)
        loads.copy_to(folder)
        (folder / "data.safetensors").unlink(missing_ok=True)
        shutil.rmtree(folder / "tensors", ignore_errors=True)
        if script.data and store:
            with Store(folder / "tensors") as target:
                target.put_many(script.data)
        elif script.data:
            write_safetensors(folder / "data.safetensors", script.data)
        write_atomically(folder / "repro.py", script.text)
        return script.text

    def _shows(self, candidate: Exhibit, folder: Path, limit: float) -> bool:
        """Whether the candidate shows the finding. One that crashes or cannot be written does not."""
        try:
            self.write(candidate, folder)
        except (TorchsanError, RuntimeError, TypeError, ValueError, KeyError, OSError):
            return False
        return self.runner.under_torchsan(folder, limit) is not None

    def reduce(self, exhibit: Exhibit) -> tuple[Exhibit, str | None, int]:
        """Return the smallest candidate that shows the finding, why it may not be the smallest, and how many trials."""
        smallest = exhibit
        trials: Trials[Exhibit] = Trials(
            shows=self._shows,
            folder=self.work,
            limits=self.limits,
            key=key_of,
            describe=lambda c: f"{count(len(c.nodes), 'node')}, {count(elements(c), 'element')}",
            progress=self.progress,
            known=self._load(),
        )

        def better(candidate: Exhibit) -> None:
            nonlocal smallest
            smallest = candidate
            self._save(trials.known)

        def work() -> None:
            self.wanted.loads.copy_to(self.work)
            values = self.runner.evaluate(exhibit, self.work, self.limits.trial)
            if reduce(exhibit, values, self.tensors, trials.first, better) is None:
                raise Stopped("it does not show the finding by itself")

        try:
            stopped = trials.until_stopped(work)
        finally:
            self._save(trials.known)
        return smallest, stopped, trials.count

    def _load(self) -> dict[str, bool]:
        try:
            state = json.loads(self.state.read_text())
            if state["of"] == self._key():
                known = {str(k): bool(v) for k, v in state["trials"].items()}
                self.progress(f"going on after {len(known)} trials of an earlier attempt")
                return known
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # No earlier attempt, or none that can be read.
        return {}

    def _key(self) -> str:
        """What the trials are about: the same candidate is another trial with another module loaded."""
        loads = self.wanted.loads
        texts = [hashlib.sha256(file.read_bytes()).hexdigest() for file in loads.files]
        return hashlib.sha256(json.dumps([key_of(self.wanted.exhibit), loads.modules, texts]).encode()).hexdigest()

    def _save(self, known: dict[str, bool]) -> None:
        state = {"of": self._key(), "trials": dict(known)}
        write_atomically(self.state, json.dumps(state))
