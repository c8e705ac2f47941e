"""Rate limiting engine: algorithms in integer arithmetic, and bounded tables of counters.

No I/O and no clock: times are arguments, in nanoseconds since the Unix epoch. `ringfence.rules`
matches limits to requests, and `hashring` finds the owner of a key.
"""

from ringfence.limiter.backends import LoneDecider, Tables
from ringfence.limiter.compiled import compiled_tables, why_not_compiled
from ringfence.limiter.cost_estimate import OverAdmission, bytes_per_key, over_admission
from ringfence.limiter.engine import Engine
from ringfence.limiter.limit import (
    MAX_CARRIED_SLOTS,
    NS_PER_SECOND,
    Algorithm,
    Calendar,
    InvalidLimit,
    Limit,
)
from ringfence.limiter.outcome import CHARGED_CODES, Code, Outcome, Outcomes
from ringfence.limiter.packed.packed_snapshot import PackedSnapshot
from ringfence.limiter.rule_tables import EngineRule
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
    "LoneDecider",
    "Tables",
    "compiled_tables",
    "why_not_compiled",
    "Snapshot",
    "PackedSnapshot",
    "BadState",
    "OverAdmission",
    "over_admission",
    "bytes_per_key",
]
