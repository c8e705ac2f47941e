"""The limiter: how much a key may spend, decided by integer arithmetic over a bounded table.

Pure: time comes in as nanoseconds since the Unix epoch, answers go out as values. Which limit
applies to a request is for `ringfence.rules`, who owns a key for `hashring`.
"""

from ringfence.limiter.backends import Tables
from ringfence.limiter.compiled import compiled_tables, why_not_compiled
from ringfence.limiter.cost_estimate import OverAdmission, bytes_per_key, over_admission
from ringfence.limiter.engine import Engine, EngineRule
from ringfence.limiter.limit import (
    MAX_CARRIED_SLOTS,
    NS_PER_SECOND,
    Algorithm,
    Calendar,
    InvalidLimit,
    Limit,
)
from ringfence.limiter.outcome import CHARGED_CODES, Code, Outcome, Outcomes
from ringfence.limiter.serialization import BadState, Snapshot
from ringfence.limiter.table import Table

__all__ = [
    "Limit",
    "Algorithm",
    "Calendar",
    "InvalidLimit",
    "MAX_CARRIED_SLOTS",
    "NS_PER_SECOND",
    "Code",
    "CHARGED_CODES",
    "Outcome",
    "Outcomes",
    "Table",
    "Engine",
    "EngineRule",
    "Tables",
    "compiled_tables",
    "why_not_compiled",
    "Snapshot",
    "BadState",
    "OverAdmission",
    "over_admission",
    "bytes_per_key",
]
