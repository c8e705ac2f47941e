"""Parser of the address and options of a `limits` storage."""

from urllib.parse import parse_qsl, urlencode

from ringfence.client.blocking.blocking_limiter import BlockingLimiter, connect, local
from ringfence.client.connect import verify_address
from ringfence.client.url import OPTIONS, masked
from ringfence.errors import ConfigError
from ringfence.rules import RuleSet

__all__ = ["CLUSTER", "LOCAL", "limiter_at"]

CLUSTER = "ringfence"
LOCAL = "ringfence+local"
_OPTIONS = ("connect_timeout", "raise_on_outage")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def limiter_at(uri: str | None, options: dict[str, object]) -> BlockingLimiter:
    """Create the limiter for a storage address. It connects when it is first used.

    `ringfence://` alone uses the address in `RINGFENCE_URL`. Options are in the address or in
    `options`. Raises `ConfigError` for an invalid address or option.
    """
    scheme, _, rest = (uri or f"{CLUSTER}://").removeprefix("async+").partition("://")
    place, _, query = rest.partition("?")
    said = dict(parse_qsl(query, keep_blank_values=True))
    chosen = {**{name: said.pop(name) for name in _OPTIONS if name in said}, **options}
    for name in chosen:
        if name not in _OPTIONS:
            raise ConfigError(f"storage option must be one of {', '.join(_OPTIONS)}, got {name!r}")
    if scheme == LOCAL:
        if place.strip("/") or said or chosen:
            raise ConfigError(
                f"storage address {LOCAL}:// must have no host and no option, because it counts in "
                f"this process; use {CLUSTER}:// for a cluster"
            )
        return local(RuleSet())
    for name in said:
        if name not in OPTIONS:  # Options of the storage are not options of the cluster's address.
            known = ", ".join(sorted(OPTIONS + _OPTIONS))
            raise ConfigError(
                f"option of the storage address must be one of {known}, got {masked(name)!r}"
            )
    url = f"{CLUSTER}://{place}" + (f"?{urlencode(said)}" if said else "") if place else None
    if url is None and said:
        raise ConfigError(
            f"storage address must have a host before its options, got {CLUSTER}://?"
            f"{masked(', '.join(said))}; write {CLUSTER}://HOST:PORT?OPTION=VALUE"
        )
    raise_on_outage = _flag(chosen.get("raise_on_outage", False))
    connect_timeout = _seconds(chosen.get("connect_timeout", 5.0))
    verify_address(url)  # Raises now, not at the first request.
    return connect(url, raise_on_outage=raise_on_outage, connect_timeout=connect_timeout)


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() not in _TRUE + _FALSE:
        raise ConfigError(f"storage option raise_on_outage must be true or false, got {value!r}")
    return str(value).lower() in _TRUE


def _seconds(value: object) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise ConfigError(
            f"storage option connect_timeout must be a number of seconds, such as 5, got {value!r}"
        )
    return seconds
