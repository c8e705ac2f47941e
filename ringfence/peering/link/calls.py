"""Functions that send a message over a link and wait for the reply."""

from collections.abc import Callable
from typing import TypeVar

from ringfence import runtime
from ringfence.errors import AccessDenied
from ringfence.peering.link.link import Link
from ringfence.wire import (
    AskLeave,
    AskPeers,
    AskStats,
    AskThrottled,
    Done,
    Members,
    Message,
    Peers,
    Plain,
    Pong,
    Rules,
    Stats,
    Throttled,
)

__all__ = ["ask_to_leave", "call", "fetch_counters", "fetch_peers", "fetch_throttled"]

_Reply = TypeVar("_Reply", Members, Rules, Stats, Peers, Done, Pong, Throttled)


async def call(link: Link, make: Callable[[int], Message], kind: type[_Reply]) -> _Reply | None:
    """Send a message and wait for its reply; return None if there is none."""
    answered = runtime.Event()
    replies: list[_Reply] = []

    def on_reply(reply: object) -> None:
        if isinstance(reply, kind):
            replies.append(reply)
        answered.set()

    link.call(make, on_reply)
    await answered.wait()
    return replies[0] if replies else None


async def fetch_counters(link: Link) -> dict[str, int] | None:
    """Fetch the counters of a member; None without a reply."""
    reply = await call(link, AskStats, Stats)
    return None if reply is None else reply.counters


async def fetch_throttled(link: Link, count: int) -> Throttled | None:
    """Fetch the keys that a member denied most often; None without a reply."""
    return await call(link, lambda seq: AskThrottled(seq, count), Throttled)


async def fetch_peers(link: Link) -> list[dict[str, Plain]] | None:
    """Fetch the information of a member about all members; None without a reply."""
    reply = await call(link, AskPeers, Peers)
    if reply is None or not isinstance(reply.plain, list):
        return None
    return [peer for peer in reply.plain if isinstance(peer, dict)]


async def ask_to_leave(link: Link) -> bool:
    """Ask a member to transfer its keys to other members and stop; return whether it accepted.

    Raises `AccessDenied` when the caller's token lacks the scope for this request.
    """
    reply = await call(link, AskLeave, Done)
    if reply is None and isinstance(link.refusal, AccessDenied):
        raise link.refusal
    return reply is not None
