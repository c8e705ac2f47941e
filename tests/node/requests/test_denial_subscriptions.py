from node.requests.denial_subscriptions import DenialSubscriptions
from ringfence.limiter import Code, Outcomes
from ringfence.wire import Batch, Op, Results, Source

SECOND = 10**9


class World:
    def __init__(self, most=100):
        self.reported = []
        self.subscriptions = DenialSubscriptions(
            lambda client, keys: self.reported.append((client, keys)), most
        )
        for client in ("one", "two"):
            self.subscriptions.subscribe(client)

    def deny(self, client, *keys, now=0, code=Code.DENIED, op=Op.CHECK):
        self.subscriptions.on_denied(client, *answer(*keys, code=code, op=op), now)


def answer(*keys, code=Code.DENIED, op=Op.CHECK):
    count = len(keys)
    columns = [[code.value] * count, *([0] * count for _ in range(6))]
    columns[3] = [10 * SECOND] * count
    return Batch(op, list(keys), [1] * count), Results(Outcomes(*columns), [Source.OWNER] * count)


def test_each_denied_client_is_notified_once_when_the_denial_ends():
    w = World()
    w.deny("one", b"k1", b"k2")
    w.deny("two", b"k1")

    w.subscriptions.end_denials([b"k1", b"k3"])
    w.subscriptions.end_denials([b"k1"])

    assert w.reported == [("one", [b"k1"]), ("two", [b"k1"])]


def test_revoking_all_denials_names_no_keys():
    w = World()
    w.deny("one", b"k1", b"k2")

    w.subscriptions.end_all_denials()
    w.subscriptions.end_denials([b"k1"])

    assert w.reported == [("one", [])]


def test_only_denials_of_subscribed_clients_are_recorded():
    w = World()
    w.deny("one", b"k1", code=Code.ALLOWED)
    w.deny("one", b"k1", op=Op.REFUND)
    w.deny("unsubscribed", b"k1")
    w.deny("two", b"k1")
    w.subscriptions.on_client_left("two")

    w.subscriptions.end_denials([b"k1"])

    assert w.reported == []
    assert len(w.subscriptions) == 0


def test_denials_of_other_clients_remain_after_a_client_has_left():
    w = World()
    w.deny("one", b"k1")
    w.deny("two", b"k1", b"k2")
    w.subscriptions.on_client_left("two")

    w.subscriptions.end_denials([b"k1", b"k2"])

    assert w.reported == [("one", [b"k1"])]


def test_only_the_denied_checks_of_a_batch_are_recorded():
    w = World()
    batch, results = answer(b"k1", b"k2", b"k3")
    results.outcomes.codes[:2] = [Code.ALLOWED.value, Code.NEVER.value]

    w.subscriptions.on_denied("one", batch, results, 0)
    w.subscriptions.on_denied_elsewhere("two", batch, results)

    assert len(w.subscriptions) == 1
    assert w.reported == [("two", [b"k3"])]


def test_a_denial_is_recorded_until_its_retry_time():
    w = World()
    w.deny("one", b"k1", now=3 * SECOND)
    sizes = []
    for now in (13 * SECOND - 1, 13 * SECOND):
        w.deny("two", b"k2", now=now)
        sizes.append(len(w.subscriptions))

    assert sizes == [2, 1]


def test_full_subscriptions_revoke_the_oldest_denial():
    w = World(most=2)
    w.deny("one", b"k1")
    w.deny("one", b"k2")
    w.deny("one", b"k1")
    w.deny("two", b"k3")

    assert w.reported == [("one", [b"k2"])]
    assert len(w.subscriptions) == 2


def test_expired_subscriptions_are_dropped_silently():
    w = World()
    w.deny("one", b"k1", b"k2")
    w.deny("one", b"k3", now=10 * SECOND)

    assert len(w.subscriptions) == 1
    assert w.reported == []


def test_a_denial_of_another_node_expires_immediately():
    w = World()

    w.subscriptions.on_denied_elsewhere("one", *answer(b"k1"))
    w.subscriptions.on_denied_elsewhere("one", *answer(b"k2", code=Code.ALLOWED))
    w.subscriptions.on_denied_elsewhere("unsubscribed", *answer(b"k1"))

    assert w.reported == [("one", [b"k1"])]
