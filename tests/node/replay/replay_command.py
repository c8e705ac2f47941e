"""The command `ringfence replay` as tests run it, and rules for its logs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

UNITS = {"min": "minute", "h": "hour"}


def rules_of(limit: str, algorithm: str, more_rules: str = "") -> str:
    amount, unit = limit.split("/")
    return (
        "domain: log\ndescriptors:\n  - key: client\n    rate_limit:\n"
        f"      requests_per_unit: {amount}\n      unit: {UNITS[unit]}\n"
        f"      algorithm: {algorithm}\n{more_rules}"
    )


@dataclass
class CommandResult:
    status: int
    out: str
    err: str

    @property
    def last(self) -> dict[str, Any]:
        """Return the last line, parsed from JSON."""
        last = json.loads(self.out.splitlines()[-1])
        assert isinstance(last, dict)
        return last


Run = Callable[..., CommandResult]
