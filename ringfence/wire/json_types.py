"""Data without behaviour: what rules and answers for people are made of on the wire."""

from typing import TypeAlias

__all__ = ["Plain"]

Plain: TypeAlias = "bool | int | float | str | bytes | list[Plain] | dict[str, Plain] | None"
"""What msgpack carries: data without behaviour."""
