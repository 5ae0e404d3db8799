"""`torchsan explain KIND`: what a kind of finding means, its usual causes, and what to do."""

from __future__ import annotations

import argparse
import difflib
import sys

from torchsan.errors import UsageError
from torchsan.report.explanations import explained_kinds, explanation, plain_explanation
from torchsan.report.printing import write_wrapped


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `explain` to the command line."""
    parser = commands.add_parser(
        "explain",
        description="Say what a kind of finding means, what usually causes it, and what to do. "
        "Without a kind: list them.",
    )
    parser.add_argument("kind", metavar="KIND", nargs="?", help="such as wrong-values")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the explanation. Raise UsageError for a kind that there is not."""
    kinds = explained_kinds()
    if args.kind is None:
        width = max(map(len, kinds))
        for kind in kinds:
            found = explanation(kind)
            write_wrapped(f"{kind:<{width}}  {found.meaning if found else ''}\n", sys.stdout)
        return 0
    kind = args.kind.strip().lower().replace("_", "-")
    found = explanation(kind)
    if found is None:
        near = difflib.get_close_matches(kind, kinds, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no kind of finding is called {args.kind!r}; {hint}kinds: {', '.join(kinds)}", slug="no-kind")
    write_wrapped(plain_explanation(kind, found), sys.stdout)
    return 0
