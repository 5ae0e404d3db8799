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
from torchsan.records.memory import BufferLife, BytesByLine, MemoryCall, NamedBytes
from torchsan.records.program import (
    CallTimes,
    Direction,
    GraphId,
    GraphNodes,
    GraphRecord,
    KernelKind,
    KernelRecord,
    LaunchTime,
    NodeRecord,
    SourceLine,
)
from torchsan.records.replicas import ReplicaRecord, StepRecord
from torchsan.records.tensor import Comparison, Scalar, TensorMeta, TensorSummary
from torchsan.records.watched import Watched

__all__ = [
    "BufferLife",
    "BytesByLine",
    "CallTimes",
    "Check",
    "Comparison",
    "Coverage",
    "Direction",
    "Exhibit",
    "Finding",
    "Given",
    "GraphId",
    "GraphNodes",
    "GraphRecord",
    "GraphRef",
    "KernelKind",
    "KernelRecord",
    "Kind",
    "LaunchTime",
    "MemoryCall",
    "NamedBytes",
    "NodeRecord",
    "OperatorCall",
    "ReplicaRecord",
    "Scalar",
    "Severity",
    "Skipped",
    "SourceLine",
    "Stage",
    "StepRecord",
    "TensorMeta",
    "TensorSummary",
    "Watched",
    "decode",
    "encode",
]
