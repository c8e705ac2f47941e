import pytest

from ringfence.client.local_cache.leases import Leases
from ringfence.client.local_cache.local_cache import LocalCache
from ringfence.limiter import Limit
from ringfence.rules import adhoc_rule
from ringfence.wire import UNKNOWN_LEASE, LeaseGrant

KEY = b"hot-key!"
SECOND = 10**9


class World:
    """Leases with a fake clock, whose sent messages are recorded in `asks`."""

    def __init__(self, now=-1e6, **names):
        self.asks = []
        self.now = now
        self.owner = "owner"
        self.is_reachable = True
        self.leases = Leases(self.send, **names)

    def send(self, ask):
        self.asks.append(ask)
        if not self.is_reachable:
            self.leases.on_answer(ask, None, self.now, None)
        return self.is_reachable

    def spend(self, times=1, cost=1):
        return [self.leases.spend(KEY, cost, self.now) is not None for _ in range(times)]

    def lend(self, units=100, number=1, seconds=1.0, node="owner"):
        answer = LeaseGrant(1, number, units, round(seconds * SECOND), 1000, 500, SECOND)
        self.leases.on_answer(self.asks[-1], node, self.now, answer)

    def borrow(self, **lent):
        self.spend(16)
        self.lend(**lent)

    def reported(self):
        """Return the ended leases that were reported: their numbers and spent units."""
        return [(ask.leases, ask.spent) for ask in self.asks if ask.leases]


def test_a_lease_is_requested_for_hot_keys_only():
    w = World()
    w.spend(3)
    w.now += 0.11
    w.spend(3)
    before = list(w.asks)
    w.spend(20)

    assert before == []
    assert [(ask.key, ask.want) for ask in w.asks] == [(KEY, 64)]


def test_a_lease_pays_for_checks_until_it_is_used_up():
    w = World()
    w.borrow(units=10)

    assert w.spend(12) == [True] * 10 + [False] * 2
    assert w.spend(1, cost=3) == [False]


def test_a_lease_is_used_for_three_quarters_of_its_time():
    w = World()
    w.borrow(units=100, seconds=1.0)
    w.now += 0.74
    still = w.spend(20)
    w.now += 0.01

    assert (all(still), w.spend()) == (True, [False])
    assert w.reported() == [((1,), (20,))]


def test_a_tick_gives_back_expired_leases():
    w = World()
    w.borrow(units=100)
    w.spend(3)
    due = w.leases.next_deadline()
    w.leases.tick(due)

    assert due == w.now + 0.75
    assert w.reported() == [((1,), (3,))]
    assert w.asks[-1].want == 0
    assert w.leases.next_deadline() == due + 0.5
    w.leases.on_answer(w.asks[-1], "owner", due, LeaseGrant(1, 0, 0, SECOND, 0, 0, 0))
    assert w.leases.next_deadline() == float("inf")


def test_the_next_lease_arrives_before_the_last_unit_is_spent():
    w = World()
    w.borrow(units=100, number=1)
    w.spend(51)
    w.lend(units=200, number=2)

    assert all(w.spend(249))
    assert w.reported() == [((1,), (100,))]


def test_an_expired_next_lease_is_not_spent_without_a_tick():
    w = World()
    w.borrow(units=100, number=1, seconds=4.0)
    w.spend(51)
    w.lend(units=200, number=2, seconds=1.0)
    w.now += 2

    within, beyond = w.spend(49), w.spend()

    assert (all(within), beyond) == (True, [False])


def test_a_batch_of_checks_spends_no_lease_that_has_expired():
    w = World()
    w.borrow(units=100, seconds=1.0)
    rule = adhoc_rule(Limit.of_ns(1000, SECOND))
    cache = LocalCache(lambda number: rule, 0, w.leases, lambda: w.now)

    def decide():
        decisions = cache.decide_all("api", [{}] * 3, [rule] * 3, [KEY] * 3, [1] * 3)
        return [decision is not None for decision in decisions]

    w.now += 0.74
    within = decide()
    w.now += 0.01
    beyond = decide()

    assert (within, beyond) == ([True] * 3, [False] * 3)
    assert w.reported() == [((1,), (3,))]


def test_a_refused_lease_is_requested_again_after_the_owners_pause():
    w = World()
    w.spend(16)
    w.leases.on_answer(w.asks[-1], "owner", w.now, LeaseGrant(1, 0, 0, SECOND, 0, 0, 0))
    w.now += 0.99
    w.spend(40)
    quiet = len(w.asks)
    w.now += 0.01
    w.spend(40)

    assert (quiet, len(w.asks)) == (1, 2)


def test_units_of_a_cancelled_check_can_be_spent_again():
    w = World()
    w.borrow(units=10)
    w.spend(2, cost=5)

    w.leases.undo(KEY, 5)
    w.leases.undo(KEY, 6)  # More units than the lease has spent.
    w.leases.undo(b"other-key", 1)

    assert w.spend(6) == [True] * 5 + [False]


def test_no_lease_is_requested_within_a_tenth_of_a_second_of_its_recall():
    w = World()
    w.borrow(units=100)
    w.leases.recall("owner", [KEY], w.now)
    w.spend(50)
    requested = [ask.want for ask in w.asks if ask.want]
    w.now += 0.11
    w.spend(50)

    assert requested == [64]
    assert len([ask.want for ask in w.asks if ask.want]) == 2


def test_a_recalled_lease_is_given_back_at_once():
    w = World()
    w.borrow(units=100)
    w.spend(7)
    w.leases.recall("another", [KEY], w.now)
    before = w.reported()
    w.leases.recall("owner", [], w.now)

    assert before == []
    assert w.reported() == [((1,), (7,))]
    assert w.spend() == [False]


def test_the_lease_of_a_lost_owner_is_not_spent():
    w = World()
    w.borrow(units=100)
    w.leases.drop_node("owner")

    assert w.spend() == [False]
    assert w.reported() == []
    assert len(w.leases) == 0


def test_the_lease_of_a_lost_owner_is_reported_until_the_owner_answers():
    w = World()
    w.borrow(units=100)
    w.spend(7)
    w.leases.drop_node("owner")
    assert w.leases.next_deadline() == w.now + 1.25

    sent_at = []
    for _ in range(200):
        before = len(w.asks)
        w.leases.tick(w.now)
        if len(w.asks) > before:
            sent_at.append(w.now + 1e6)
            assert (w.asks[-1].want, w.asks[-1].node) == (0, "owner")
            answer = LeaseGrant(1, 0, 0, SECOND, 0, 0, 0) if len(sent_at) == 4 else None
            w.leases.on_answer(w.asks[-1], "owner", w.now, answer)
        w.now += 0.25

    assert sent_at == [1.25, 1.75, 2.75, 4.75]
    assert w.reported() == [((1,), (7,))] * 4
    assert w.leases.next_deadline() == float("inf")


def test_the_lease_of_an_owner_that_does_not_return_is_reported_for_30_s():
    w = World()
    w.borrow(units=100)
    w.leases.drop_node("owner")
    for _ in range(200):
        w.leases.tick(w.now)
        w.now += 0.25

    assert len(w.reported()) == 7
    assert w.leases.next_deadline() == float("inf")


def test_a_report_is_sent_again_at_once_when_a_node_is_reachable_again():
    w = World()
    w.borrow(units=100)
    w.leases.drop_node("owner")
    due = [1.25, 1.75, 2.75, 4.75, 8.75]
    for seconds in due:
        w.now = seconds - 1e6
        w.leases.tick(w.now)
    w.now += 1.0
    w.leases.report_again(w.now, "another node")
    assert len(w.reported()) == len(due)
    w.leases.report_again(w.now, "owner")
    w.leases.report_again(w.now + 0.4, "owner")

    assert w.reported() == [((1,), (0,))] * (len(due) + 1)
    assert w.leases.next_deadline() == w.now + 8.0
    w.leases.on_answer(w.asks[-1], "owner", w.now, LeaseGrant(1, 0, 0, SECOND, 0, 0, 0))
    w.leases.report_again(w.now + 1.0)
    assert len(w.reported()) == len(due) + 1


@pytest.mark.parametrize("node", ["owner", None])
def test_a_report_that_could_not_be_sent_is_sent_when_the_node_is_reachable_again(node):
    w = World()
    w.borrow(units=100)
    w.leases.drop_node("owner")
    w.is_reachable = False
    w.now += 1.25
    w.leases.tick(w.now)
    w.is_reachable = True
    w.now += 0.1

    for _ in range(2):
        w.leases.report_again(w.now, node)

    assert len(w.reported()) == 2


def test_requests_that_fail_at_once_do_not_extend_the_time_of_a_report():
    w = World()
    w.borrow(units=100)
    w.leases.drop_node("owner")
    w.is_reachable = False
    for _ in range(200):
        w.leases.tick(w.now)
        w.now += 0.25

    assert len(w.reported()) == 7
    assert w.leases.next_deadline() == float("inf")


def test_a_lease_is_reported_for_30_s_also_after_an_older_lease_without_an_answer():
    w = World()
    w.borrow(units=100, number=1)
    w.leases.drop_node("owner")
    w.now += 29.0
    w.borrow(units=100, number=2)
    w.spend(7)
    w.leases.drop_node("owner")
    w.now += 29.0
    w.leases.tick(w.now)

    assert w.reported() == [((1, 2), (0, 7))]


def test_a_report_without_an_answer_is_sent_again():
    w = World()
    w.borrow(units=100)
    w.spend(7)
    w.leases.recall("owner", [KEY], w.now)
    w.leases.on_answer(w.asks[-1], "owner", w.now, None)
    w.now += 1.25
    w.leases.tick(w.now)

    assert w.reported() == [((1,), (7,))] * 2


def test_a_lease_whose_grant_was_lost_is_reported_as_unspent_before_the_next_request():
    w = World()
    w.spend(16)
    w.leases.on_answer(w.asks[-1], "owner", w.now, None)
    w.now += 0.25
    w.spend(16)
    asked = len(w.asks)
    w.now += 0.25
    w.leases.tick(w.now)
    sent = w.asks[asked:]
    w.leases.on_answer(sent[-1], "owner", w.now, LeaseGrant(1, 0, 0, SECOND, 0, 0, 0))
    w.spend(16)

    assert asked == 1
    assert [(ask.want, ask.leases, ask.spent) for ask in sent] == [(0, (UNKNOWN_LEASE,), (0,))]
    assert w.asks[-1].want == 64


def test_no_unknown_lease_is_reported_while_another_lease_of_the_key_is_held():
    w = World()
    w.borrow(units=100)
    w.spend(60)
    ask = w.asks[-1]
    assert ask.want == 256
    w.leases.on_answer(ask, "owner", w.now, None)
    for _ in range(3):
        w.now += 0.5
        w.leases.tick(w.now)
        w.spend(2)

    assert w.reported() == [((1,), (62,)), ((UNKNOWN_LEASE, 1), (0, 62))]


def test_a_new_owner_is_asked_although_a_lost_owner_may_have_granted_a_lease():
    w = World(owner_of=lambda key: w.owner)
    w.spend(16)
    w.leases.on_answer(w.asks[-1], "owner", w.now, None)
    w.owner = "other"
    w.now += 0.25
    w.borrow(node="other")
    w.now += 0.5
    w.leases.tick(w.now)

    assert w.spend() == [True]
    assert w.reported() == [((UNKNOWN_LEASE,), (0,))]
    assert w.asks[-1].node == "owner"


def test_an_owner_gets_no_report_of_an_unknown_lease_while_another_link_to_it_has_a_lease():
    w = World(name_of=str.lower)
    w.borrow(units=100, node="OWNER")
    w.spend(60)
    w.leases.on_answer(w.asks[-1], "owner", w.now, None)
    w.now += 0.5
    w.leases.tick(w.now)

    assert w.reported() == []


def test_no_unknown_lease_is_reported_after_the_report_of_another_lease_was_dropped():
    w = World()
    for number in range(1, 18):
        w.leases.recall("owner", [KEY], w.now)
        w.now += 0.2
        w.borrow(units=100, number=number)
        if number == 1:
            w.spend(7)
    w.leases.recall("owner", [KEY], w.now)
    w.now += 0.2
    w.spend(16)
    w.leases.on_answer(w.asks[-1], "owner", w.now, None)
    w.now += 60.0
    w.leases.tick(w.now)

    assert not any(UNKNOWN_LEASE in numbers for numbers, _ in w.reported())


def test_leases_are_requested_again_when_no_node_answers_the_report_of_an_unknown_one():
    w = World()
    w.spend(16)
    w.leases.on_answer(w.asks[-1], "owner", w.now, None)
    wanted = []
    for _ in range(60):
        w.now += 0.25
        w.leases.tick(w.now)
        before = len(w.asks)
        w.spend(8)
        wanted += [ask.want for ask in w.asks[before:]]

    assert wanted == [64]


def test_unanswered_reports_are_bounded():
    w = World()
    for number in range(2000):
        key = KEY + b"%d" % number
        w.leases.count_all([key] * 4, w.now)
        w.lend(number=number)
        w.leases.drop_node("owner")
    w.now += 2.0
    before = len(w.asks)
    w.leases.tick(w.now)

    assert len(w.asks) - before == 1024


def test_a_decision_by_lease_shows_the_remaining_units():
    w = World()
    w.borrow(units=100)
    lease = w.leases.spend(KEY, 1, w.now)

    assert lease is not None
    assert lease.row() == (0, 1000, 599, 0, SECOND, 0, 0, 6)


def test_keys_of_one_batch_become_hot_as_single_keys_do():
    w = World()
    cold = [b"cold-%d" % number for number in range(500)]
    w.leases.count_all([*cold, *[KEY] * 3], w.now)
    before = list(w.asks)
    w.leases.count_all([KEY, b"warm-key", *cold], w.now)

    assert before == []
    assert [(ask.key, ask.want) for ask in w.asks] == [(KEY, 64)]


def test_one_lease_is_requested_for_a_key_that_is_many_times_in_a_batch():
    w = World()
    w.leases.count_all([KEY, b"warm-key", *[KEY] * 9], w.now)

    assert [(ask.key, ask.want) for ask in w.asks] == [(KEY, 64)]


def test_many_keys_are_not_remembered_for_long():
    w = World()
    for number in range(100):
        w.leases.count_all([b"key-%d-%d" % (number, each) for each in range(256)], w.now)

    assert len(w.leases._check_counts) < 2 * 1024
