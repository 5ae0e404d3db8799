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
    """

    def __init__(self, message: str, *, slug: str) -> None:
        super().__init__(f"{message} [{slug}]")
        self.slug = slug


class UsageError(TorchsanError):
    """The caller asked for something that cannot be; the command line exits with status 2."""


class RecordingError(UsageError):
    """A folder that is no recording, or one this version cannot read."""


class StoreError(TorchsanError):
    """A tensor store cannot do what was asked: missing or corrupt data, bad names, a full disk."""


class SessionError(TorchsanError):
    """A session cannot start here, such as one inside another."""


class UnsupportedTorchError(TorchsanError):
    """The installed PyTorch is one that torchsan cannot instrument."""


class InternalError(TorchsanError):
    """torchsan itself failed; the command line exits with status 3."""


class FindingsError(TorchsanError):
    """Raised by `raise_if_findings` when a run has findings of severity `error`."""


class TorchsanWarning(UserWarning):
    """What `torch.compile(backend="torchsan")` found, unless it is asked to raise it."""
