"""Puts the page together: one file, whose data is text to the browser and whose script and style are ours alone."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from importlib import resources
from typing import Any

from torchsan.recording import Reader
from torchsan.report.html.model import Model, build

_SCRIPTS = ("dom", "source", "pictures", "kernel", "verdict", "findings", "program", "memory", "values", "artifacts")
_SCRIPTS_LAST = ("search", "app")


def render_html(recording: Reader) -> str:
    """Return the report of a recording as one HTML file. Raise RecordingError if a record is malformed."""
    return render_model(build(recording))


def render_model(model: Model) -> str:
    """Return the page of a model.

    Nothing from the recording is markup or code in it. The index is JSON in a block that is no script to the browser,
    without a `<`, so that nothing in it can end the block. The parts are packed, and have no characters but those of
    base64. The policy allows our script and our style by their hashes, and nothing else: no network, no other script,
    no markup made from text.
    """
    style = _static("report.css")
    script = "\n".join(["(() => {", '"use strict";', *(_static(f"{n}.js") for n in _SCRIPTS + _SCRIPTS_LAST), "})();"])
    policy = (
        f"default-src 'none'; script-src 'sha256-{_hash(script)}'; style-src 'sha256-{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    title = f"torchsan: {model.index['verdict']['status']}: {model.index['run']['command']}"
    data = [_block("index", "application/json", _json(model.index))]
    data += [_block(f"part-{name}", "text/plain", _packed(part)) for name, part in model.parts.items()]
    places = {
        "POLICY": policy,
        "TITLE": html.escape(title),
        "STYLE": style,
        "DATA": "\n".join(data),
        "SCRIPT": script,
    }
    return re.sub(f"%({'|'.join(places)})%", lambda place: places[place[1]], _static("page.html")) + "\n"


def _static(name: str) -> str:
    return resources.files("torchsan.report.html").joinpath("static", name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: Any) -> str:
    """JSON that can stand in an HTML file: ASCII, and no character that means something to HTML."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _packed(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _block(name: str, kind: str, text: str) -> str:
    return f'<script type="{kind}" id="{name}">{text}</script>'
