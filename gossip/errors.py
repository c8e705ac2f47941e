"""Why bytes from the network were not taken."""

__all__ = ["BadDatagram"]


class BadDatagram(ValueError):
    """Bytes that are no message, or break one of its bounds; `cause` is for counting."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
