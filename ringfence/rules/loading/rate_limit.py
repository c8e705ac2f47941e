"""The `rate_limit` map of a descriptor, and the `defaults` map of a file, read into limits.

Envoy's keys keep their meaning. Ours stand beside them in the same map: `algorithm`, `burst`,
`period`, `slots`, `align`, `timezone`, `soft`, `mode`, `scope`, `global`, `on_failure`,
`leases`. A key that
belongs to one algorithm chooses it when the rule names none, as in limits written as strings. The
descriptor around the map is `build`'s, who shares a limit `scope`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ringfence.limiter.limit import Algorithm, Calendar, InvalidLimit, Limit
from ringfence.rules.loading.scope import check_scope, read_scope
from ringfence.rules.loading.source import Cursor, Item, Table
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
"""Our keys that a file may set for all its rules."""
_OUR_KEYS = (*DEFAULT_KEYS, "burst", "period")
RATE_LIMIT_KEYS = (*_ENVOY_KEYS, *_OUR_KEYS)
_NOT_COUNTING = ("scope", "global", "on_failure", "leases")
_COUNTING_KEYS = tuple(key for key in _OUR_KEYS if key not in _NOT_COUNTING)
"""Those that say how to count, so that nothing unlimited can have them."""

NOT_YET = {
    "elastic": (
        "`elastic` is not available yet",
        "use `soft: 20%` to admit a fixed share above the limit",
    ),
}
"""Keys whose effect is not built: why each is refused, and the mend."""
_REFUSED_IN_RATE_LIMIT = {
    **NOT_YET,
    **{
        key: (f"{key} stands inside rate_limit", "move it out, beside `key`")
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


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a rule gets where neither it nor its file says; each goes only where it fits."""

    algorithm: Algorithm = Algorithm.SLIDING_WINDOW
    slots: int = 1
    """For `sliding_window`."""
    queue: bool = False
    """For `leaky_bucket`."""
    calendar: bool = False
    """For `fixed_window` with a unit of a day or longer."""
    timezone: str = "UTC"
    """For calendar windows."""
    soft_permille: int = 0
    on_failure: OnFailure = OnFailure.ALLOW
    scope: str = "datacenter"
    """As in `Rule`."""
    home: str = ""
    leases: bool = True


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What one `rate_limit` map says; without meaning when it had errors."""

    limit: Limit | None
    """None when unlimited."""
    unit: str
    name: str
    replaces: tuple[tuple[str, int], ...]
    """Names, each with its line."""
    on_failure: OnFailure
    scope: str
    home: str
    leases: bool
    scope_line: int
    """Where the scope is said, or the map begins."""


def read_defaults(spot: Cursor, table: Table, base: Defaults) -> Defaults:
    """Read a file's `defaults` over those of the node."""
    fields = spot.fields(table, DEFAULT_KEYS, _REFUSED_IN_DEFAULTS)
    algorithm = spot.choice(fields, "algorithm", tuple(Algorithm))
    return _shared(spot, fields, replace(base, algorithm=Algorithm(algorithm or base.algorithm)))


def read_rate_limit(spot: Cursor, table: Table, defaults: Defaults) -> RateLimit:
    """Read a `rate_limit`, every key of it, however many are wrong."""
    return _Reader(spot, table, defaults).read()


_BELONGS = {
    "burst": (Algorithm.TOKEN_BUCKET, Algorithm.LEAKY_BUCKET),
    "mode": (Algorithm.LEAKY_BUCKET,),
    "slots": (Algorithm.SLIDING_WINDOW,),
    "align": (Algorithm.FIXED_WINDOW,),
}
"""Keys that only some algorithms have; the first is chosen when the rule names none."""


class _Reader:
    def __init__(self, spot: Cursor, table: Table, defaults: Defaults) -> None:
        self._spot = spot
        self._line = table.line
        self._errors_before = len(spot.findings.errors)
        self._fields = spot.fields(table, RATE_LIMIT_KEYS, _REFUSED_IN_RATE_LIMIT)
        self._is_misspelt = self._has_failed()
        self._settings = _shared(spot, self._fields, defaults)

    def read(self) -> RateLimit:
        name = self._spot.text(self._fields, "name")
        replaces = self._replaces(name)
        limit, unit = None, ""
        if self._spot.flag(self._fields, "unlimited"):
            self._check_unlimited()
        else:
            unit, limit = self._limit()
        settings = self._settings
        said = self._fields.get("global", self._fields.get("scope"))
        line = self._line if said is None else said.line
        if limit is not None:
            check_scope(self._spot, line, settings.scope, limit)
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
        burst = self._spot.whole(self._fields, "burst", least=1, most=UINT32_MAX)
        algorithm = self._algorithm()
        self._check_fit(algorithm)
        calendar = self._calendar(unit) if algorithm is Algorithm.FIXED_WINDOW else None
        if "timezone" in self._fields and calendar is None:
            mend = "add `align: calendar`, or drop it"
            self._error("timezone", "timezone only matters to calendar windows", mend)
        if self._has_failed() or amount is None or period_ns is None:
            return unit, None
        settings = self._settings
        try:
            return unit, Limit.of_ns(
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
            what, _, mend = str(error).partition("; ")
            self._spot.error(self._line, what, mend or "change these numbers")
            return unit, None

    def _period(self) -> tuple[str, int | None]:
        """Read the unit, or the period in its place: the unit's word, and the length."""
        unit = self._spot.choice(self._fields, "unit", tuple(UNIT_NS))
        period_ns = self._spot.parsed(self._fields, "period", parse_period)
        if "period" not in self._fields:
            mend = f"add `unit:` with one of: {', '.join(UNIT_NS)}; or `period:` in seconds"
            self._require("unit", mend)
            return unit, UNIT_NS.get(unit)
        if "unit" in self._fields:
            self._error("period", "period and unit are both given", "keep one of them")
        return unit_of(period_ns or 0), period_ns

    def _amount(self) -> int | None:
        self._require("requests_per_unit", "add it; `requests_per_unit: 0` refuses everything")
        return self._spot.whole(self._fields, "requests_per_unit", least=0, most=UINT32_MAX)

    def _algorithm(self) -> Algorithm:
        named = self._spot.choice(self._fields, "algorithm", tuple(Algorithm))
        if named:
            return Algorithm(named)
        default = self._settings.algorithm
        for key, owners in _BELONGS.items():
            if self._says(key) and default not in owners:
                return Algorithm.LEAKY_BUCKET if self._says("mode") else owners[0]
        return default

    def _check_fit(self, algorithm: Algorithm) -> None:
        for key, owners in _BELONGS.items():
            if self._says(key) and algorithm not in owners:
                mend = f"drop it, or write `algorithm: {owners[0]}`"
                self._error(key, f"{key} belongs to {' or '.join(owners)}, not {algorithm}", mend)

    def _says(self, key: str) -> bool:
        """Whether a key asks for something; `align: epoch` is what all but one do anyway."""
        return key in self._fields and (key != "align" or self._settings.calendar)

    def _calendar(self, unit: str) -> Calendar | None:
        if not self._settings.calendar:
            return None
        if unit in tuple(Calendar) and "period" not in self._fields:
            return Calendar(unit)
        if "align" in self._fields:
            mend = f"write a unit of {', '.join(Calendar)}, or drop align"
            self._error("align", "`align: calendar` needs a unit of a day or longer", mend)
        return None

    def _check_unlimited(self) -> None:
        for key in ("unit", *_COUNTING_KEYS):
            if key in self._fields:
                self._error(key, f"unlimited together with {key}", "keep one of them")
        if "requests_per_unit" in self._fields:
            what = "requests_per_unit means nothing beside unlimited"
            line = self._fields["requests_per_unit"].line
            self._spot.warn(line, what, "drop one of them")

    def _replaces(self, own_name: str) -> tuple[tuple[str, int], ...]:
        names: list[tuple[str, int]] = []
        for item in self._spot.listing(self._fields, "replaces"):
            table = self._spot.table(item, "an item of replaces")
            if table is None:
                continue
            fields = self._spot.fields(table, ("name",), {})
            mend = "write `- name: NAME` of the limit to drop"
            name = self._spot.required(table, fields, "name", mend)
            if name and name == own_name:
                mend = "name another limit"
                self._spot.error(item.line, f"replaces its own name {name!r}", mend)
            elif name:
                names.append((name, item.line))
        return tuple(names)

    def _require(self, key: str, mend: str) -> None:
        """Report a missing key, unless another one was not understood and may have been it."""
        if key not in self._fields and not self._is_misspelt:
            self._spot.error(self._line, f"{key} is missing", mend)

    def _error(self, key: str, what: str, mend: str) -> None:
        self._spot.error(self._fields[key].line, what, mend)

    def _has_failed(self) -> bool:
        return len(self._spot.findings.errors) > self._errors_before


def _shared(spot: Cursor, fields: Mapping[str, Item], base: Defaults) -> Defaults:
    """Read the keys that both maps have; those that are absent stay as in `base`."""
    slots = spot.whole(fields, "slots", least=1, most=3600)
    mode = spot.choice(fields, "mode", ("meter", "queue"))
    align = spot.choice(fields, "align", ("calendar", "epoch"))
    soft = spot.parsed(fields, "soft", parse_share)
    on_failure = spot.choice(fields, "on_failure", tuple(OnFailure))
    scope, home = read_scope(spot, fields, (base.scope, base.home))
    return replace(
        base,
        slots=base.slots if slots is None else slots,
        queue=mode == "queue" if mode else base.queue,
        calendar=align == "calendar" if align else base.calendar,
        timezone=_timezone(spot, fields) or base.timezone,
        soft_permille=base.soft_permille if soft is None else soft,
        on_failure=OnFailure(on_failure or base.on_failure),
        scope=scope,
        home=home,
        leases=spot.flag(fields, "leases") if "leases" in fields else base.leases,
    )


def _timezone(spot: Cursor, fields: Mapping[str, Item]) -> str:
    name = spot.text(fields, "timezone")
    if not name:
        return ""
    try:
        Limit.of_ns(1, UNIT_NS["day"], Algorithm.FIXED_WINDOW, calendar=Calendar.DAY, timezone=name)
    except InvalidLimit as error:
        what, _, mend = str(error).partition("; ")
        spot.error(fields["timezone"].line, what, mend or "as in `timezone: Europe/Berlin`")
        return ""
    return name
