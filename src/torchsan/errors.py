"""The exceptions torchsan raises. Each message says what, where and what next; the slug is explained in the docs."""

from __future__ import annotations

__all__ = [
    "FindingsError",
    "InternalError",
    "RecordingError",
    "SessionError",
    "StoreError",
    "TorchsanError",
    "TorchsanWarning",
    "UnsupportedTorchError",
    "UsageError",
]


class TorchsanError(Exception):
    """Base of everything torchsan raises on purpose.

    `slug` is a short stable name that `docs/reference/errors.md` explains; it ends the message in brackets.

    >>> try:
    ...     torchsan.session(check="value")
    ... except torchsan.TorchsanError as e:
    ...     print(e.slug)
    bad-option
    """

    def __init__(self, message: str, *, slug: str) -> None:
        super().__init__(f"{message} [{slug}]")
        self.slug = slug


class UsageError(TorchsanError):
    """The caller asked for something that cannot be; the command line exits with status 2.

    >>> try:
    ...     torchsan.session(watch="loud")
    ... except torchsan.UsageError as e:
    ...     print(e)
    unknown value of watch 'loud' in session(); allowed: off, names, print, save [bad-option]
    """


class RecordingError(UsageError):
    """A folder that is no recording, or one this version cannot read.

    >>> try:
    ...     torchsan.recording.Reader("no-such-folder")
    ... except torchsan.RecordingError as e:
    ...     print(e.slug)
    no-recording
    """


class StoreError(TorchsanError):
    """A tensor store cannot do what was asked: missing or corrupt data, bad names, a full disk.

    >>> try:
    ...     torchsan.Store("tensors").get("no such tensor")
    ... except torchsan.StoreError as e:
    ...     print(e.slug)
    tensor-not-found
    """


class SessionError(TorchsanError):
    """A session cannot start here, such as one inside another.

    >>> try:
    ...     with torchsan.session(), torchsan.session():
    ...         pass
    ... except torchsan.SessionError as e:
    ...     print(e.slug)
    nested-session
    """


class UnsupportedTorchError(TorchsanError):
    """The installed PyTorch is one that torchsan cannot instrument.

    >>> try:
    ...     with torchsan.session() as run:
    ...         y = torch.relu(x)
    ... except torchsan.UnsupportedTorchError:
    ...     y = torch.relu(x)
    """


class InternalError(TorchsanError):
    """torchsan itself failed; the command line exits with status 3. Please report it.

    >>> raise torchsan.InternalError("the recording of this run cannot be read", slug="internal-error")
    Traceback (most recent call last):
    torchsan.errors.InternalError: the recording of this run cannot be read [internal-error]
    """


class FindingsError(TorchsanError):
    """Raised by `raise_if_findings` when a run has findings of severity `error`.

    >>> try:
    ...     torchsan.memory_step({}, freed=["never allocated"])
    ... except torchsan.FindingsError as e:
    ...     print(e.slug)
    memory-step
    """


class TorchsanWarning(UserWarning):
    """What `torch.compile(backend="torchsan")` found, unless it is asked to raise it.

    >>> warnings.filterwarnings("error", category=torchsan.TorchsanWarning)
    """


def in_one_line(error: BaseException) -> str:
    """`IndexError: index out of range in self`: of the message its first line."""
    return f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0][:200]
