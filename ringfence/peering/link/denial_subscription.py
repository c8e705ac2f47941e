"""Subscription of a client: a member notifies it when denials and leases end early."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Protocol

from ringfence.peering.link.frames_in_flight import OnResults
from ringfence.wire import Batch, Results, SubscribeDenials

__all__ = ["DenialSubscription", "LocalDecisions"]


class _Denials(Protocol):
    def add_results(
        self, node: Hashable, batch: Batch, results: Results, asked_at: float
    ) -> None: ...

    def on_revoked(self, node: Hashable, keys: Sequence[bytes]) -> None: ...

    def drop_node(self, node: Hashable) -> None: ...


class _Leases(Protocol):
    def recall(self, node: Hashable, keys: Sequence[bytes], now: float) -> None: ...

    def report_again(self, now: float, node: Hashable) -> None: ...

    def drop_node(self, node: Hashable) -> None: ...


class LocalDecisions(Protocol):
    """Interface of a client's local cache: the decisions that messages of members can end."""

    @property
    def denials(self) -> _Denials:
        """Cached denials, each valid until its `retry_after`."""

    @property
    def leases(self) -> _Leases:
        """Units that members have lent."""


class DenialSubscription:
    """Subscription to one member, which updates the local cache by the member's messages."""

    def __init__(self, member: Hashable, cache: LocalDecisions | None) -> None:
        """`member` identifies the member in the cache; without a cache there is no subscription."""
        self.on_results: OnResults | None = None
        """Receives the results of batches while the subscription is active."""
        self._member = member
        self._cache = cache
        self._seq = 0
        """Number of the request to subscribe; 0 when none is in progress."""
        self._is_supported = cache is not None
        """Whether the member may support the message; old versions close the connection on it."""

    def request(self, take_seq: Callable[[], int]) -> SubscribeDenials | None:
        """Create the request to subscribe; None when the member or the client does not support
        it."""
        if not self._is_supported:
            return None
        self._seq = take_seq()
        return SubscribeDenials(self._seq)

    def accept(self, seq: int, now: float) -> bool:
        """Activate the subscription at `now`, and report ended leases again; return whether `seq`
        is the number of the request to subscribe."""
        if seq != self._seq or self._cache is None:
            return False
        self._seq = 0
        self.on_results = partial(self._cache.denials.add_results, self._member)
        self._cache.leases.report_again(now, self._member)
        return True

    def reject(self) -> bool:
        """Send no more requests to subscribe if the member rejected the pending one; return
        whether one was pending."""
        if not self._seq:
            return False
        self._is_supported = False
        return True

    def revoke_denials(self, keys: Sequence[bytes]) -> None:
        """Remove cached denials that the member has revoked."""
        if self._cache is not None:
            self._cache.denials.on_revoked(self._member, keys)

    def recall_leases(self, keys: Sequence[bytes], now: float) -> None:
        """End the leases that the member recalls."""
        if self._cache is not None:
            self._cache.leases.recall(self._member, keys, now)

    def cancel(self) -> None:
        """End the subscription, and remove the cached denials and leases that the member could
        have revoked."""
        self._seq, self.on_results = 0, None
        if self._cache is not None:
            self._cache.denials.drop_node(self._member)
            self._cache.leases.drop_node(self._member)
