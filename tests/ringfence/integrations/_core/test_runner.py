"""Log lines during an outage of the limiter and after it."""

import pytest
from msgspec.structs import replace

from ringfence.client.decision import UNDECIDED, Decision, decide
from ringfence.integrations._core.runner import OutageTracker
from ringfence.wire import Source


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def decision_from(source: Source) -> Decision:
    return decide([replace(UNDECIDED, source=source)])


def test_the_end_of_an_outage_logs_its_length_and_undecided_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    outages = OutageTracker(clock)
    for _ in range(3):
        outages.record(decision_from(Source.POLICY))
        clock.seconds += 2
    for _ in range(2):
        outages.record(decision_from(Source.OWNER))

    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("Ringfence: no node of the limiter answers")
    assert caplog.messages[1] == (
        "Ringfence: the limiter answers again after 6 s, in which it did not decide 3 checks"
    )
    assert not outages.is_out


@pytest.mark.parametrize("source", [Source.CACHE, Source.LEASE, Source.LOCAL, Source.NO_RULE])
def test_local_decisions_do_not_end_an_outage(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    outages = OutageTracker(clock)
    outages.record(decision_from(Source.POLICY))
    clock.seconds += 10
    outages.record(decision_from(source))

    assert outages.is_out
    assert len(caplog.messages) == 1


def test_decisions_of_this_process_alone_begin_an_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outages = OutageTracker(Clock())
    outages.record(decision_from(Source.LOCAL))

    assert outages.is_out
    assert len(caplog.messages) == 1


def test_a_partial_outage_is_logged_at_most_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    outages = OutageTracker(clock)
    for _ in range(50):
        outages.record(decision_from(Source.POLICY))
        clock.seconds += 0.5
        outages.record(decision_from(Source.OWNER))
        clock.seconds += 0.1

    assert len(caplog.messages) == 1


def test_the_recovery_of_a_failed_limiter_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    outages = OutageTracker(clock)
    outages.record_failure(RuntimeError("a bug"))
    clock.seconds += 2
    outages.record(decision_from(Source.OWNER))

    assert caplog.messages[0] == "limiter failed; requests are allowed without a check"
    assert "answers again after 2 s" in caplog.messages[1]
