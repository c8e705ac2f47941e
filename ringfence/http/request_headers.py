"""A request's headers as a mapping, for functions that look for them as frameworks offer them."""

from collections.abc import Iterable, Iterator, Mapping

__all__ = ["RequestHeaders"]


class RequestHeaders(Mapping[str, str]):
    """Looked up in whatever case, listed in lower case; lines of one name are joined by commas."""

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        self._joined: dict[str, str] = {}
        for name, value in lines:
            key = name.lower()
            said = self._joined.get(key)
            self._joined[key] = value if said is None else f"{said}, {value}"

    def __getitem__(self, name: str) -> str:
        return self._joined[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._joined)

    def __len__(self) -> int:
        return len(self._joined)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._joined!r})"
