"""Hooks that let schemathesis send and read msgpack, loaded through SCHEMATHESIS_HOOKS."""

from typing import Any

import msgspec
import schemathesis
from hypothesis import strategies as st

schemathesis.openapi.format(
    "ringfence-limit",
    st.sampled_from(["9/minute", "9 per 2 hours fixed_window", "5/s burst 20", "1/day calendar"]),
)


@schemathesis.serializer("application/msgpack")
def to_msgpack(context: Any, value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


@schemathesis.deserializer("application/msgpack")
def from_msgpack(context: Any, response: Any) -> Any:
    return msgspec.msgpack.decode(response.content)


@schemathesis.deserializer("text/html")
def from_html(context: Any, response: Any) -> Any:
    return response.text
