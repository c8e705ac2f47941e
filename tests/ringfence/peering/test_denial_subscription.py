"""Subscription to the denials and leases that a member ends early."""

from ringfence.peering.link.denial_subscription import DenialSubscription
from ringfence.wire import Batch, Op, SubscribeDenials, empty_results

BATCH = Batch(Op.CHECK, [b"some key"], [1])


class Cache:
    """Local cache that records its calls."""

    def __init__(self):
        self.calls = []
        self.denials = self.leases = self

    def add_results(self, node, batch, results, asked_at):
        self.calls.append(("add", node, batch.keys, asked_at))

    def on_revoked(self, node, keys):
        self.calls.append(("revoke", node, keys))

    def recall(self, node, keys, now):
        self.calls.append(("recall", node, keys, now))

    def report_again(self, now, node):
        self.calls.append(("report", now, node))

    def drop_node(self, node):
        self.calls.append(("drop", node))


def subscribed(cache):
    """Return a subscription whose request the member has accepted."""
    subscription = DenialSubscription("n1", cache)
    assert subscription.request(lambda: 7) == SubscribeDenials(7)
    assert subscription.accept(7, 1.0)
    return subscription


def test_results_are_cached_once_the_member_has_accepted():
    cache = Cache()
    subscription = DenialSubscription("n1", cache)
    assert subscription.on_results is None
    assert not subscription.accept(7, 1.0)
    subscription.request(lambda: 7)
    assert subscription.on_results is None
    assert not subscription.accept(6, 1.0)
    assert subscription.on_results is None

    assert subscription.accept(7, 1.0)

    subscription.on_results(BATCH, empty_results(1), 2.5)
    assert cache.calls == [("report", 1.0, "n1"), ("add", "n1", [b"some key"], 2.5)]
    assert not subscription.accept(7, 1.0), "the number may be that of a later call"
    assert not subscription.accept(1, 1.0)


def test_without_a_cache_there_is_no_subscription():
    subscription = DenialSubscription("n1", None)

    assert subscription.request(lambda: 7) is None
    assert not subscription.accept(0, 1.0)
    assert not subscription.reject()
    subscription.revoke_denials([b"some key"])
    subscription.recall_leases([b"some key"], 0.0)
    subscription.cancel()
    assert subscription.on_results is None


def test_a_member_that_rejected_a_request_gets_no_other_one():
    subscription = DenialSubscription("n1", Cache())
    subscription.request(lambda: 7)

    assert subscription.reject()
    subscription.cancel()

    assert subscription.request(lambda: 8) is None


def test_a_connection_that_broke_later_rejected_nothing():
    subscription = subscribed(Cache())

    assert not subscription.reject()
    subscription.cancel()
    assert not subscription.reject()
    assert not subscription.accept(1, 1.0)

    assert subscription.request(lambda: 8) == SubscribeDenials(8)


def test_messages_of_the_member_and_the_end_of_the_connection_change_the_cache():
    cache = Cache()
    subscription = subscribed(cache)

    subscription.revoke_denials([b"one"])
    subscription.recall_leases([b"two"], 1.5)
    subscription.cancel()

    assert cache.calls == [
        ("report", 1.0, "n1"),
        ("revoke", "n1", [b"one"]),
        ("recall", "n1", [b"two"], 1.5),
        *[("drop", "n1")] * 2,
    ]
    assert subscription.on_results is None
