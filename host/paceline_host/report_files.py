# SPDX-License-Identifier: Apache-2.0
"""The report of a daemon's comparison: its files beside the journals, and what of it fits into a message."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.errors import PacelineError
from paceline_host.html import write_pages
from paceline_host.journal import JOURNAL
from paceline_host.operator_wire import DOCUMENT_BYTES
from paceline_host.report import load_report, render


def report_of(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Write the report's files; return it for who watches, as far as it fits into a message."""
    if not any(folder.glob(f"*/{JOURNAL}")):
        return {}
    try:
        report = load_report(folder)
        content = report.as_json()
        with suppress(OSError):
            (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        write_pages(report, folder)
    except PacelineError as error:
        say(f"{folder.name}: no report: {error}")
        return {}
    document = {"text": render(report), "report": content}
    return document if len(json.dumps(document)) < DOCUMENT_BYTES else {"text": document["text"]}
