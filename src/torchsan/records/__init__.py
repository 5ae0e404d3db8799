"""The frozen dataclasses that everything speaks. No torch here: a report reads them without it."""

from torchsan.records.codec import decode, encode
from torchsan.records.exhibit import Exhibit, Given, OperatorCall
from torchsan.records.finding import (
    Check,
    Coverage,
    Finding,
    GraphRef,
    Kind,
    Severity,
    Skipped,
    Stage,
)
from torchsan.records.program import (
    Direction,
    GraphId,
    GraphRecord,
    KernelKind,
    KernelRecord,
    SourceLine,
)
from torchsan.records.tensor import Comparison, Scalar, TensorMeta, TensorSummary
from torchsan.records.watched import Watched

__all__ = [
    "Check",
    "Comparison",
    "Coverage",
    "Direction",
    "Exhibit",
    "Finding",
    "Given",
    "GraphId",
    "GraphRecord",
    "GraphRef",
    "KernelKind",
    "KernelRecord",
    "Kind",
    "OperatorCall",
    "Scalar",
    "Severity",
    "Skipped",
    "SourceLine",
    "Stage",
    "TensorMeta",
    "TensorSummary",
    "Watched",
    "decode",
    "encode",
]
