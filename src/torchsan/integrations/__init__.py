"""torchsan where jobs are written: callbacks for transformers, Lightning and Accelerate, and a job for one's own loop.

Each opens a session with a budget, and tells findings and figures to what people watch the job with. Importing this
imports none of those packages.
"""

from __future__ import annotations

from torchsan.integrations.job import Job

__all__ = ["Job"]
