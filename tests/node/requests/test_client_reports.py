"""Reports of clients: each counts once, at a limited rate."""

from node.requests.client_reports import MAX_CLIENTS, Pace, Reports, reported_counter
from ringfence.limiter import Code
from ringfence.wire import Report, Source


def report(client: int, number: int) -> Report:
    return Report(1, client, number, 0, [b"ruleidnt"], [0], [6], [1])


def test_a_number_is_new_once() -> None:
    reports = Reports()

    assert [reports.is_new("app", report(1, number)) for number in (1, 1, 2, 1, 2, 3)] == [
        *(True, False, True, False, False, True),
    ]


def test_clients_and_tokens_have_separate_numbers() -> None:
    reports = Reports()

    found = [reports.is_new(token, report(client, 1)) for token in "ab" for client in (1, 2)]
    assert all(found)


def test_the_client_that_was_silent_longest_is_dropped() -> None:
    reports = Reports(most=2)
    for client in (1, 2, 1, 3):
        reports.is_new("app", report(client, 1))

    assert not reports.is_new("app", report(1, 1))
    assert reports.is_new("app", report(2, 1))
    assert MAX_CLIENTS == 8192


def test_a_connection_may_send_eight_reports_at_once_and_two_a_second() -> None:
    pace = Pace(0.0)

    assert [pace.take(0.0) for _ in range(9)] == [True] * 8 + [False]
    assert [pace.take(1.0) for _ in range(3)] == [True, True, False]
    assert [pace.take(100.0) for _ in range(9)] == [True] * 8 + [False]


def test_decisions_of_a_failure_policy_are_counted_separately() -> None:
    names = {
        (Code.DENIED, Source.CACHE): "reported_denied",
        (Code.NEVER, Source.CACHE): "reported_denied",
        (Code.ALLOWED, Source.LEASE): "reported_allowed",
        (Code.DENIED, Source.POLICY): "reported_undecided",
        (Code.ALLOWED, Source.SHED): "reported_undecided",
        (Code.ALLOWED, Source.LOCAL): "reported_undecided",
    }

    assert {pair: reported_counter(*pair) for pair in names} == names
