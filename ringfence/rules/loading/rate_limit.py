"""Reader of the `rate_limit` map of a descriptor and of the `defaults` map of a file.

Envoy's keys keep their meaning. Ringfence adds keys to the same map: `algorithm`, `burst`,
`period`, `slots`, `align`, `timezone`, `soft`, `mode`, `scope`, `global`, `on_failure`, `leases`.
A key that belongs to one algorithm selects that algorithm when the rule names none, as in limits
written as text. `build` reads the surrounding descriptor, and `scope` reads `scope` and `global`.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from ringfence.limiter.limit import Algorithm, Calendar, InvalidLimit, Limit
from ringfence.rules.loading.cursor import Cursor
from ringfence.rules.loading.scope import check_scope, read_scope
from ringfence.rules.loading.values import Item, Table
from ringfence.rules.model import OnFailure
from ringfence.rules.periods import UNIT_NS, parse_period, parse_share, unit_of

__all__ = [
    "DEFAULT_KEYS",
    "NOT_YET",
    "RATE_LIMIT_KEYS",
    "UINT32_MAX",
    "Defaults",
    "RateLimit",
    "read_defaults",
    "read_rate_limit",
]

UINT32_MAX = 2**32 - 1

_ENVOY_KEYS = ("unit", "requests_per_unit", "unlimited", "name", "replaces")
DEFAULT_KEYS = (
    *("algorithm", "mode", "slots", "align", "timezone", "soft", "scope", "global", "on_failure"),
    "leases",
)
"""Ringfence's keys that a file may set for all its rules."""
_OUR_KEYS = (*DEFAULT_KEYS, "burst", "period")
RATE_LIMIT_KEYS = (*_ENVOY_KEYS, *_OUR_KEYS)
_NOT_COUNTING = ("scope", "global", "on_failure", "leases")
_COUNTING_KEYS = tuple(key for key in _OUR_KEYS if key not in _NOT_COUNTING)
"""Keys that define how to count; an unlimited rule cannot have them."""

NOT_YET = {
    "elastic": (
        "`elastic` is not available yet",
        "use `soft: 20%` to admit a fixed percentage above the limit",
    ),
}
"""Keys that are not implemented: why each is rejected, and the fix."""
_REFUSED_IN_RATE_LIMIT = {
    **NOT_YET,
    **{
        key: (f"{key} is not allowed inside rate_limit", "move it out, next to `key`")
        for key in (
            *("key", "value", "descriptors", "shadow_mode", "quota_mode", "detailed_metric"),
            *("value_to_metric", "share_threshold", "metadata"),
        )
    },
}
_REFUSED_IN_DEFAULTS = {
    **NOT_YET,
    **{
        key: (f"{key} cannot be a default", "write it in each rate_limit that needs it")
        for key in (*_ENVOY_KEYS, "burst", "period")
    },
}


class Defaults(Struct, frozen=True):
    """Values for keys that are absent in a `rate_limit` map, for limits for which the key is
    valid."""

    algorithm: Algorithm = Algorithm.SLIDING_WINDOW
    slots: int = 1
    """Number of slots of `sliding_window` limits."""
    queue: bool = False
    """Whether `leaky_bucket` limits use queue mode."""
    calendar: bool = False
    """Whether `fixed_window` limits with a unit of a day or longer use calendar windows."""
    timezone: str = "UTC"
    """Time zone of calendar windows."""
    soft_permille: int = 0
    on_failure: OnFailure = OnFailure.ALLOW
    scope: str = "datacenter"
    """Scope of the rules, as in `Rule.scope`."""
    home: str = ""
    leases: bool = True


class RateLimit(Struct, frozen=True):
    """Contents of one `rate_limit` map; not meaningful if the map had errors."""

    limit: Limit | None
    """Limit of the rule; None when unlimited."""
    unit: str
    name: str
    replaces: tuple[tuple[str, int], ...]
    """Names of the replaced rules, each with its line."""
    on_failure: OnFailure
    scope: str
    home: str
    leases: bool
    scope_line: int
    """Line of the key that sets the scope, or else the first line of the map."""


def read_defaults(cursor: Cursor, table: Table, base: Defaults) -> Defaults:
    """Read the `defaults` map of a file; it overrides `base`, the defaults of the node."""
    fields = cursor.fields(table, DEFAULT_KEYS, _REFUSED_IN_DEFAULTS)
    algorithm = cursor.choice(fields, "algorithm", tuple(Algorithm))
    return _read_shared_keys(
        cursor, fields, replace(base, algorithm=Algorithm(algorithm or base.algorithm))
    )


def read_rate_limit(cursor: Cursor, table: Table, defaults: Defaults) -> RateLimit:
    """Read a `rate_limit` map. Every key is read, even if others are wrong."""
    return _Reader(cursor, table, defaults).read()


_ALGORITHMS_OF_KEY = {
    "burst": (Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET),
    "mode": (Algorithm.LEAKY_BUCKET,),
    "slots": (Algorithm.SLIDING_WINDOW,),
    "align": (Algorithm.FIXED_WINDOW,),
}
"""Algorithms by the key that belongs to them; a rule that names none gets the first."""


class _Reader:
    def __init__(self, cursor: Cursor, table: Table, defaults: Defaults) -> None:
        self._cursor = cursor
        self._line = table.line
        self._errors_before = len(cursor.findings.errors)
        self._fields = cursor.fields(table, RATE_LIMIT_KEYS, _REFUSED_IN_RATE_LIMIT)
        self._is_misspelt = self._has_errors()
        self._settings = _read_shared_keys(cursor, self._fields, defaults)

    def read(self) -> RateLimit:
        name = self._cursor.text(self._fields, "name")
        replaces = self._replaces(name)
        limit, unit = None, ""
        if self._cursor.flag(self._fields, "unlimited"):
            self._check_unlimited()
        else:
            unit, limit = self._limit()
        settings = self._settings
        scope_item = self._fields.get("global", self._fields.get("scope"))
        line = self._line if scope_item is None else scope_item.line
        if limit is not None:
            # `scope: global` takes a mode such as `split` from the defaults.
            names_scope = "global" in self._fields or (
                "scope" in self._fields and settings.scope in ("datacenter", "global")
            )
            check_scope(self._cursor, line, settings.scope, limit, is_default=not names_scope)
        return RateLimit(
            limit,
            unit,
            name,
            replaces,
            settings.on_failure,
            settings.scope,
            settings.home,
            settings.leases,
            line,
        )

    def _limit(self) -> tuple[str, Limit | None]:
        unit, period_ns = self._period()
        amount = self._amount()
        burst = self._cursor.whole(self._fields, "burst", least=1, most=UINT32_MAX)
        algorithm = self._algorithm()
        self._check_keys_of(algorithm)
        calendar = self._calendar(unit) if algorithm is Algorithm.FIXED_WINDOW else None
        if "timezone" in self._fields and calendar is None:
            fix = "add `align: calendar`, or remove it"
            self._error("timezone", "timezone has no effect without calendar windows", fix)
        if self._has_errors() or amount is None or period_ns is None:
            return unit, None
        settings = self._settings
        try:
            limit = Limit.of_ns(
                amount,
                period_ns,
                algorithm,
                burst=burst,
                queue=settings.queue and algorithm is Algorithm.LEAKY_BUCKET,
                slots=settings.slots if algorithm is Algorithm.SLIDING_WINDOW else 1,
                calendar=calendar,
                timezone=settings.timezone if calendar else "UTC",
                soft_permille=settings.soft_permille,
            )
        except InvalidLimit as error:
            what, _, fix = str(error).partition("; ")
            if error.field in DEFAULT_KEYS and error.field not in self._fields:
                what += f" (the map `defaults` sets {error.field})"
            self._cursor.error(self._line, what, fix or "change these numbers")
            return unit, None
        if (
            "soft" in self._fields
            and settings.soft_permille
            and limit.ceiling == limit.hard_ceiling
        ):
            fix = "write a margin of at least one unit, or remove it"
            line = self._fields["soft"].line
            self._cursor.warn(line, "soft is less than one unit, so it has no effect", fix)
        return unit, limit

    def _period(self) -> tuple[str, int | None]:
        """Read `unit`, or `period` instead; return the unit's name and the length in ns."""
        unit = self._cursor.choice(self._fields, "unit", tuple(UNIT_NS))
        period_ns = self._cursor.parsed(self._fields, "period", parse_period)
        if "period" not in self._fields:
            fix = f"add `unit:` with one of: {', '.join(UNIT_NS)}; or `period:` in seconds"
            self._require("unit", fix)
            return unit, UNIT_NS.get(unit)
        if "unit" in self._fields:
            self._error("period", "period and unit are both given", "keep one of them")
        return unit_of(period_ns or 0), period_ns

    def _amount(self) -> int | None:
        self._require("requests_per_unit", "add it; `requests_per_unit: 0` denies everything")
        return self._cursor.whole(self._fields, "requests_per_unit", least=0, most=UINT32_MAX)

    def _algorithm(self) -> Algorithm:
        named = self._cursor.choice(self._fields, "algorithm", tuple(Algorithm))
        if named:
            return Algorithm(named)
        default = self._settings.algorithm
        for key, owners in _ALGORITHMS_OF_KEY.items():
            if self._selects(key) and default not in owners:
                return Algorithm.LEAKY_BUCKET if self._selects("mode") else owners[0]
        return default

    def _check_keys_of(self, algorithm: Algorithm) -> None:
        for key, owners in _ALGORITHMS_OF_KEY.items():
            if self._selects(key) and algorithm not in owners:
                fix = f"remove it, or write `algorithm: {owners[0]}`"
                what = f"{key} needs {' or '.join(owners)}, got {algorithm}"
                self._error(key, what, fix)

    def _selects(self, key: str) -> bool:
        """Whether a key of a `rate_limit` map is set and selects an algorithm; `align: epoch` is
        valid for all."""
        return key in self._fields and (key != "align" or self._settings.calendar)

    def _calendar(self, unit: str) -> Calendar | None:
        if not self._settings.calendar:
            return None
        if unit in tuple(Calendar) and "period" not in self._fields:
            return Calendar(unit)
        if "align" in self._fields:
            fix = f"use one of the units {', '.join(Calendar)}, or remove align"
            self._error("align", "`align: calendar` needs a unit of a day or longer", fix)
        return None

    def _check_unlimited(self) -> None:
        for key in ("unit", *_COUNTING_KEYS):
            if key in self._fields:
                self._error(key, f"unlimited excludes {key}", "keep one of them")
        if "requests_per_unit" in self._fields:
            what = "requests_per_unit has no effect beside unlimited"
            line = self._fields["requests_per_unit"].line
            self._cursor.warn(line, what, "remove one of them")

    def _replaces(self, own_name: str) -> tuple[tuple[str, int], ...]:
        names: list[tuple[str, int]] = []
        for item in self._cursor.listing(self._fields, "replaces"):
            table = self._cursor.table(item, "an item of replaces")
            if table is None:
                continue
            fields = self._cursor.fields(table, ("name",), {})
            fix = "write `- name: NAME` with the name of the limit to replace"
            name = self._cursor.required(table, fields, "name", fix)
            if name and name == own_name:
                fix = "name another limit"
                self._cursor.error(item.line, f"replaces its own name {name!r}", fix)
            elif name:
                names.append((name, item.line))
        return tuple(names)

    def _require(self, key: str, fix: str) -> None:
        """Report a key that is missing in a `rate_limit` map, unless an unknown key may be a
        misspelling of it."""
        if key not in self._fields and not self._is_misspelt:
            self._cursor.error(self._line, f"{key} is missing", fix)

    def _error(self, key: str, what: str, fix: str) -> None:
        self._cursor.error(self._fields[key].line, what, fix)

    def _has_errors(self) -> bool:
        return len(self._cursor.findings.errors) > self._errors_before


def _read_shared_keys(cursor: Cursor, fields: Mapping[str, Item], base: Defaults) -> Defaults:
    """Read the keys that occur in `rate_limit` and in `defaults`; absent keys keep their
    default."""
    slots = cursor.whole(fields, "slots", least=1, most=3600)
    mode = cursor.choice(fields, "mode", ("meter", "queue"))
    align = cursor.choice(fields, "align", ("calendar", "epoch"))
    soft = cursor.parsed(fields, "soft", parse_share)
    on_failure = cursor.choice(fields, "on_failure", tuple(OnFailure))
    scope, home = read_scope(cursor, fields, (base.scope, base.home))
    return replace(
        base,
        slots=base.slots if slots is None else slots,
        queue=mode == "queue" if mode else base.queue,
        calendar=align == "calendar" if align else base.calendar,
        timezone=_timezone(cursor, fields) or base.timezone,
        soft_permille=base.soft_permille if soft is None else soft,
        on_failure=OnFailure(on_failure or base.on_failure),
        scope=scope,
        home=home,
        leases=cursor.flag(fields, "leases") if "leases" in fields else base.leases,
    )


def _timezone(cursor: Cursor, fields: Mapping[str, Item]) -> str:
    name = cursor.text(fields, "timezone")
    if not name:
        return ""
    try:
        Limit.of_ns(1, UNIT_NS["day"], Algorithm.FIXED_WINDOW, calendar=Calendar.DAY, timezone=name)
    except InvalidLimit as error:
        what, _, fix = str(error).partition("; ")
        cursor.error(fields["timezone"].line, what, fix or "as in `timezone: Europe/Berlin`")
        return ""
    return name
