"""Request headers as a mapping with case-insensitive names."""

from collections.abc import Iterable, Iterator, Mapping

__all__ = ["RequestHeaders"]


class RequestHeaders(Mapping[str, str]):
    """Mapping from header name to value, without regard to case; lines of one name are joined by
    commas."""

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        self._joined: dict[str, str] = {}
        for name, value in lines:
            key = name.lower()
            earlier = self._joined.get(key)
            self._joined[key] = value if earlier is None else f"{earlier}, {value}"

    def __getitem__(self, name: str) -> str:
        return self._joined[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._joined)

    def __len__(self) -> int:
        return len(self._joined)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._joined!r})"
