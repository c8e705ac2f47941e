"""Subscriptions of clients that cache denials: the node revokes a denial that ends early.

Every denial for a subscribed client is recorded until its retry time. When the records are full,
the oldest denial is revoked, and its client checks again. This module does no I/O: the call that
sends revocations is injected.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ringfence.limiter import Code
from ringfence.wire import Batch, Op, Results

__all__ = ["DenialSubscriptions"]

_DENIED = Code.DENIED.value
_MAX = 65_536
"""Most denials that are recorded, of all clients together."""
_MAX_SCANNED = 2
"""Oldest records that each new record checks for expiry."""

ClientT = TypeVar("ClientT")


class DenialSubscriptions(Generic[ClientT]):
    """Recorded denials by client. The callback `revoke` revokes denials of keys; an empty list
    means all."""

    def __init__(self, revoke: Callable[[ClientT, list[bytes]], None], most: int = _MAX) -> None:
        self._revoke = revoke
        self._most = most
        self._subscribers: dict[ClientT, None] = {}
        self._expires_at: OrderedDict[tuple[bytes, ClientT], int] = OrderedDict()
        self._holders: dict[bytes, dict[ClientT, None]] = {}

    def __len__(self) -> int:
        return len(self._expires_at)

    def subscribe(self, client: ClientT) -> None:
        """Subscribe this client: record its denials from now on."""
        self._subscribers[client] = None

    def is_subscribed(self, client: ClientT) -> bool:
        """Whether this client is subscribed, because it caches denials."""
        return client in self._subscribers

    def on_client_left(self, client: ClientT) -> None:
        """Remove a client that has disconnected."""
        if client in self._subscribers:
            del self._subscribers[client]
            for denial in [denial for denial in self._expires_at if denial[1] is client]:
                self._drop(denial)

    def on_denied(self, client: ClientT, batch: Batch, results: Results, now: int) -> None:
        """Record the denials of a batch that this node decided for a client."""
        codes = results.outcomes.codes
        if client not in self._subscribers or batch.op is not Op.CHECK or _DENIED not in codes:
            return
        self._drop_expired(now)
        for row, code in enumerate(codes):
            if code == _DENIED:
                key = batch.keys[row]
                denial = key, client
                self._expires_at[denial] = now + results.outcomes.retry_after_ns[row]
                self._expires_at.move_to_end(denial)
                self._holders.setdefault(key, {})[client] = None
        while len(self._expires_at) > self._most:
            denial = next(iter(self._expires_at))
            self._drop(denial)
            self._revoke(denial[1], [denial[0]])

    def on_denied_elsewhere(self, client: ClientT, batch: Batch, results: Results) -> None:
        """Revoke denials that another member decided for a subscribed client.

        The client has no subscription at that member.
        """
        if client in self._subscribers and batch.op is Op.CHECK:
            codes = results.outcomes.codes
            keys = [key for key, code in zip(batch.keys, codes, strict=True) if code == _DENIED]
            if keys:
                self._revoke(client, keys)

    def end_denials(self, keys: Sequence[bytes]) -> None:
        """Revoke the cached denials of keys that were refunded or reset."""
        if not self._expires_at:
            return
        revoked: dict[ClientT, list[bytes]] = {}
        for key in dict.fromkeys(keys):
            for client in list(self._holders.get(key, ())):
                self._drop((key, client))
                revoked.setdefault(client, []).append(key)
        for client, ended in revoked.items():
            self._revoke(client, ended)

    def end_all_denials(self) -> None:
        """Revoke all denials of all clients."""
        revoked = dict.fromkeys(client for _, client in self._expires_at)
        self._expires_at.clear()
        self._holders.clear()
        for client in revoked:
            self._revoke(client, [])

    def _drop_expired(self, now: int) -> None:
        for _ in range(_MAX_SCANNED):
            denial = next(iter(self._expires_at), None)
            if denial is None or self._expires_at[denial] > now:
                return
            self._drop(denial)

    def _drop(self, denial: tuple[bytes, ClientT]) -> None:
        key, client = denial
        self._expires_at.pop(denial, None)
        holders = self._holders.get(key)
        if holders is not None:
            holders.pop(client, None)
            if not holders:
                del self._holders[key]
