"""A blocking client of a real node: its connection, forks and threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio

from ringfence.blocking import connect
from ringfence.client.blocking.open_limiter import LimiterLost
from tests.node.real_cluster import real_cluster
from tests.ringfence.client.blocking.test_forks import forks, in_child

RULES = """
domain: d
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 100, algorithm: fixed_window}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Run a node for all tests of this module; return its address."""
    rules = tmp_path_factory.mktemp("rules") / "d.yaml"
    rules.write_text(RULES)
    with real_cluster(rules, "a", "check") as cluster:
        yield cluster.url


@pytest.fixture
def limiter(url):
    with connect(url, raise_on_outage=True, use_leases=False) as limiter:
        yield limiter


def test_a_check_is_decided_by_the_node_in_the_thread_that_asks(limiter):
    assert limiter.check("d", {"user": "a"}).remaining == 99
    assert limiter.run(thread_after_a_check) is threading.current_thread()


async def thread_after_a_check(limiter):
    await limiter.check("d", {"user": "thread"})
    return threading.current_thread()


def test_threads_share_the_connection_and_one_budget(limiter):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: limiter.check("d", {"user": "b"}).remaining, range(80)))

    assert sorted(found) == list(range(20, 100))


def test_a_thread_that_runs_trio_can_check(limiter):
    async def main():
        return limiter.check("d", {"user": "trio"}).remaining

    assert trio.run(main) == 99


@forks
def test_a_forked_child_leaves_the_connection_of_its_parent_alone(limiter):
    assert limiter.check("d", {"user": "c"}).remaining == 99
    before = limiter._open()

    def check_and_close():
        remaining = limiter.check("d", {"user": "c"}).remaining
        limiter.close()
        return remaining == 98

    assert in_child(check_and_close)
    assert limiter.check("d", {"user": "c"}).remaining == 97
    assert limiter._open() is before
    assert limiter.run(connections) == 1


async def connections(limiter):
    return len([link for link in limiter._decider._links if link.is_ready])


def test_a_host_name_is_resolved_without_an_event_loop(url):
    with connect(url.replace("127.0.0.1", "localhost"), raise_on_outage=True) as limiter:
        assert limiter.check("d", {"user": "name"}).remaining == 99


def test_a_slot_outlives_the_limiter_that_a_signal_handler_has_interrupted(limiter, url):
    limit = "1 concurrent ttl 1h"
    with connect(url, raise_on_outage=True) as other:
        with limiter.hold_limit(limit, "signal"):
            limiter._opened.abandon()  # As after an error of a handler in the loop.
            limiter.check("d", {"user": "signal"})
            assert len(limiter.run(held)) == 1
            assert not other.check_limit(limit, "signal")
        assert limiter.run(held) == []
        assert other.check_limit(limit, "signal")


async def held(limiter):
    return limiter._decider.held()


def test_a_block_begins_again_when_a_signal_handler_interrupts_the_limiter(limiter, monkeypatch):
    opened = limiter._open()

    def lose(call):
        opened.abandon()
        raise LimiterLost

    monkeypatch.setattr(opened, "call", lose)
    with limiter.hold_limit("1 concurrent", "again") as decision:
        assert decision.allowed
