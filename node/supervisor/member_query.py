"""HTTP request to the admin port of a member of this host, over loopback."""

from collections.abc import Sequence

import h11
import trio
from msgspec import Struct

from ringfence.transport.interface import Address

__all__ = ["MemberResponse", "ask_member"]

_TIMEOUT = 5.0
_MAX = 32 << 20
"""Maximum bytes of a response; a metrics page has some hundred kilobytes."""

Headers = Sequence[tuple[bytes, bytes]]


class MemberResponse(Struct, frozen=True):
    """HTTP response of a member."""

    status: int
    headers: Headers
    body: bytes


async def ask_member(
    address: Address, method: bytes, target: bytes, headers: Headers
) -> MemberResponse | None:
    """Send a request and return the response; None after five seconds without one."""
    with trio.move_on_after(_TIMEOUT):
        try:
            stream = await trio.open_tcp_stream(*address)
        except OSError:
            return None
        async with stream:
            try:
                return await _send_request(stream, method, target, headers)
            except (trio.BrokenResourceError, h11.RemoteProtocolError):
                return None
    return None


async def _send_request(
    stream: trio.SocketStream, method: bytes, target: bytes, headers: Headers
) -> MemberResponse | None:
    talk = h11.Connection(h11.CLIENT)
    request = h11.Request(
        method=method, target=target, headers=[*headers, (b"connection", b"close")]
    )
    await stream.send_all((talk.send(request) or b"") + (talk.send(h11.EndOfMessage()) or b""))
    status, answer, body = 0, list[tuple[bytes, bytes]](), bytearray()
    while True:
        match talk.next_event():
            case h11.NEED_DATA:
                talk.receive_data(await stream.receive_some())
            case h11.Response() as response:
                status, answer = response.status_code, list(response.headers)
            case h11.Data() as part:
                body += part.data
                if len(body) > _MAX:
                    return None
            case h11.EndOfMessage():
                return MemberResponse(status, answer, bytes(body))
            case _:
                return None
