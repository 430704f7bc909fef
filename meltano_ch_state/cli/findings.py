"""What a check found: one line of the diagnosis."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis.

    Attributes:
        check: What was looked at.
        status: `ok`, `warn` or `fail`.
        message: What was found.
        remedy: What to do about it; empty when nothing need be done.
    """

    check: str
    status: str
    message: str
    remedy: str = ""
