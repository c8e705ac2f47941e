"""Keys by which requests are counted, as settings name them: `ip`, `user_or_ip+route`.

A key describes one descriptor: entries joined by `+`, each `NAME` or `ENTRY=NAME`. NAME selects a
part of the request, and ENTRY is its name in the rules:

    ip                      the client's address
    user                    the authenticated user
    user_or_ip              the user, else the address
    route                   the route's pattern (`/users/{id}`), else the path
    path, method, host      these parts of the request
    header:x-api-key        a request header

A key does not apply to a request without one of its parts (no user, no such header). So requests
without that part never share one budget.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Protocol, TypeAlias

from ringfence.errors import ConfigError
from ringfence.http.addresses import ClientAddress
from ringfence.http.callback_checks import texts

__all__ = ["KeyFunction", "KeySpec", "Keys", "PlainRequest", "Request"]


class PlainRequest(Protocol):
    """Interface of a request from which keys are read by name."""

    @property
    def method(self) -> str:
        """Return the request method in upper case, such as `GET`."""

    @property
    def path(self) -> str:
        """The requested path, without the query."""

    @property
    def peer(self) -> str | None:
        """Return the address of the connection's peer; None or empty for a Unix socket."""

    @property
    def route(self) -> str | None:
        """Pattern of the matched route; None when the framework has not matched one yet."""

    @property
    def user(self) -> str | None:
        """Name of the authenticated user; None without one."""

    @property
    def native(self) -> object:
        """Return the framework's own request: ASGI scope, WSGI environ, or Django `HttpRequest`."""

    def header(self, name: str) -> str | None:
        """Return the value of a request header by its lower-case name; None if absent.

        Several lines of the header are joined by commas.
        """


class Request(PlainRequest, Protocol):
    """Request that an application's callback functions receive; each integration adapts its
    framework."""

    @property
    def headers(self) -> Mapping[str, str]:
        """All request headers, with case-insensitive names."""


KeyFunction: TypeAlias = Callable[[Request], object]
"""Function that returns one value of a request: text, a value that `str` converts, or None."""
KeySpec: TypeAlias = (
    str
    | KeyFunction
    | Mapping[str, str | KeyFunction]
    | Sequence[str | Mapping[str, str | KeyFunction]]
)
"""One key, or several in a list. A key is text, a function, or a mapping of entry names."""

_Read: TypeAlias = Callable[[PlainRequest], str | None]
_Entries: TypeAlias = tuple[tuple[str, _Read], ...]


class Keys:
    """Reads descriptors from requests, as key settings describe them.

    Raises `ConfigError` for unknown names.
    """

    def __init__(
        self,
        spec: KeySpec,
        addresses: ClientAddress,
        *,
        user: KeyFunction | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        """`user`, if given, is a function that returns the user in place of `Request.user`.

        `only` restricts the valid names: for requests that lack some parts, and for settings that
        cannot contain functions.
        """
        self._addresses = addresses
        self._only = only
        self._user: _Read = (lambda request: request.user) if user is None else texts("user", user)
        self._asks_user = False
        self._is_told_user = user is not None
        parts: Iterable[str | KeyFunction | Mapping[str, str | KeyFunction]]
        parts = [spec] if isinstance(spec, str | Mapping) or callable(spec) else spec
        if not isinstance(parts, Iterable):
            raise ConfigError(
                f"keys must be a name such as 'ip', a function or a list of these, got {spec!r}"
            )
        self._descriptors = tuple([self._read(part) for part in parts])
        if not self._descriptors or not all(self._descriptors):
            raise ConfigError(
                f"keys must have at least one key, got {spec!r}; write for instance 'ip'"
            )

    @property
    def needs_user(self) -> bool:
        """Return whether a key reads `Request.user`. Some frameworks must fetch the user first."""
        return self._asks_user and not self._is_told_user

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """Return the names of the entries of each configured descriptor, for comparison with the
        rules."""
        return tuple([tuple([name for name, _ in entries]) for entries in self._descriptors])

    def descriptors(self, request: PlainRequest) -> list[dict[str, str]]:
        """Return the descriptors of a request; one is omitted if the request lacks a part of it."""
        found = []
        for entries in self._descriptors:
            values = {}
            for name, read in entries:
                value = read(request)
                if value is None:
                    break
                values[name] = value
            else:
                found.append(values)
        return found

    def parts(self, request: PlainRequest) -> list[tuple[str, ...]]:
        """Return the descriptors of a request as tuples of names and values, for limits in no
        rule."""
        return [
            tuple([text for entry in values.items() for text in entry])
            for values in self.descriptors(request)
        ]

    # -- reading the settings ------------------------------------------------------------------

    def _read(self, part: str | KeyFunction | Mapping[str, str | KeyFunction]) -> _Entries:
        if isinstance(part, str):
            return tuple([self._entry(text) for text in part.split("+")])
        if isinstance(part, Mapping):
            return tuple([self._named(name, what) for name, what in part.items()])
        if callable(part):
            name = getattr(part, "__name__", "key")
            return (self._named(name, part),)
        raise ConfigError(f"key must be a name such as 'ip' or a function, got {part!r}")

    def _named(self, name: str, what: str | KeyFunction) -> tuple[str, _Read]:
        if not isinstance(name, str):
            raise ConfigError(
                f"name of a key must be text, got {name!r}; write the key in the rules"
            )
        return name, self._function(what) if isinstance(what, str) else texts(f"key {name!r}", what)

    def _entry(self, text: str) -> tuple[str, _Read]:
        entry, equals, what = text.partition("=")
        what = (what if equals else entry).strip()
        entry = entry.strip() if equals else what.removeprefix("header:")
        if not entry:
            raise ConfigError(f"key must have a name, got {text!r}; write for instance client=ip")
        return entry, self._function(what)

    def _function(self, name: str) -> _Read:
        header = name.removeprefix("header:").strip().lower()
        if name.startswith("header:") and header:
            return lambda request: request.header(header)
        known: dict[str, _Read] = {
            "ip": self._ip,
            "user": self._user,
            "user_or_ip": self._user_or_ip,
            "route": lambda request: request.path if request.route is None else request.route,
            "path": lambda request: request.path,
            "method": lambda request: request.method,
            "host": lambda request: request.header("host"),
        }
        if self._only is not None:
            known = {each: known[each] for each in self._only}
        if name in known:
            self._asks_user = self._asks_user or name in ("user", "user_or_ip")
            return known[name]
        near = get_close_matches(name, known, 1)
        if near:
            hint = f"did you mean {near[0]!r}?"
        elif self._only is not None:
            hint = "a proxy can send other values in a header"
        else:
            hint = "write a function for other parts"
        raise ConfigError(
            f"key must be one of {', '.join(known)} and header:NAME, got {name!r}; {hint}"
        )

    def _ip(self, request: PlainRequest) -> str:
        return self._addresses.of(request.peer, request.header)

    def _user_or_ip(self, request: PlainRequest) -> str:
        # With prefixes: otherwise a user named 203.0.113.7 would spend the budget of that client.
        user = self._user(request)
        return f"ip:{self._ip(request)}" if user is None else f"user:{user}"
