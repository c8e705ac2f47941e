from node.requests.denial_subscriptions import DenialSubscriptions
from ringfence.limiter import Code, Outcomes
from ringfence.wire import Batch, Op, Results, Source

SECOND = 10**9


class World:
    def __init__(self, most=100):
        self.reported = []
        self.watchers = DenialSubscriptions(
            lambda who, keys: self.reported.append((who, keys)), most
        )
        for who in ("one", "two"):
            self.watchers.listen(who)

    def deny(self, who, *keys, now=0, code=Code.DENIED, op=Op.CHECK):
        self.watchers.denied(who, *answer(*keys, code=code, op=op), now)


def answer(*keys, code=Code.DENIED, op=Op.CHECK):
    count = len(keys)
    columns = [[code.value] * count, *([0] * count for _ in range(6))]
    columns[3] = [10 * SECOND] * count
    return Batch(op, list(keys), [1] * count), Results(Outcomes(*columns), [Source.OWNER] * count)


def test_each_denied_client_is_notified_once_when_the_denial_ends():
    w = World()
    w.deny("one", b"k1", b"k2")
    w.deny("two", b"k1")

    w.watchers.lift([b"k1", b"k3"])
    w.watchers.lift([b"k1"])

    assert w.reported == [("one", [b"k1"]), ("two", [b"k1"])]


def test_revoking_all_denials_names_no_keys():
    w = World()
    w.deny("one", b"k1", b"k2")

    w.watchers.lift_all()
    w.watchers.lift([b"k1"])

    assert w.reported == [("one", [])]


def test_only_denials_of_subscribed_clients_are_recorded():
    w = World()
    w.deny("one", b"k1", code=Code.ALLOWED)
    w.deny("one", b"k1", op=Op.REFUND)
    w.deny("deaf", b"k1")
    w.deny("two", b"k1")
    w.watchers.left("two")

    w.watchers.lift([b"k1"])

    assert w.reported == []
    assert len(w.watchers) == 0


def test_full_subscriptions_revoke_the_oldest_denial():
    w = World(most=2)
    w.deny("one", b"k1")
    w.deny("one", b"k2")
    w.deny("one", b"k1")
    w.deny("two", b"k3")

    assert w.reported == [("one", [b"k2"])]
    assert len(w.watchers) == 2


def test_expired_subscriptions_are_dropped_silently():
    w = World()
    w.deny("one", b"k1", b"k2")
    w.deny("one", b"k3", now=10 * SECOND)

    assert len(w.watchers) == 1
    assert w.reported == []


def test_a_denial_of_another_node_expires_immediately():
    w = World()

    w.watchers.unwatched("one", *answer(b"k1"))
    w.watchers.unwatched("one", *answer(b"k2", code=Code.ALLOWED))
    w.watchers.unwatched("deaf", *answer(b"k1"))

    assert w.reported == [("one", [b"k1"])]
