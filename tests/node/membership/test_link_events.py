"""Log lines and reports when links to members are ready or lost."""

import logging
from typing import Any, cast

import pytest

from node.membership.link_events import LinkEvents
from ringfence.errors import AccessDenied, PeerUnavailable
from ringfence.peering.link import PeerLeaving


class FakeLink:
    def __init__(self, name: str = "b", refusal: Exception | None = None) -> None:
        self.name, self.refusal = name, refusal
        self.address = ("10.0.0.2", 7101)


class FakeLinks:
    def __init__(self) -> None:
        self.others: list[FakeLink] = []

    def has_link_to(self, address: object, *, other_than: FakeLink) -> bool:
        return any(each.address == address and each is not other_than for each in self.others)


class Events:
    """Events of links, with the members that were reported as unreachable."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.unreachable: list[str] = []
        self.links = FakeLinks()
        self._caplog = caplog
        caplog.set_level(logging.DEBUG, "ringfence.node")
        self._events = LinkEvents(cast(Any, self.links), self.unreachable.append, lambda _: None)

    def report(self, link: FakeLink, *, reachable: bool) -> tuple[str, str]:
        """Report a link; return the level and the text of the log line."""
        self._caplog.clear()
        self._events.on_reachable(cast(Any, link), reachable)
        [line] = self._caplog.records
        return line.levelname, line.getMessage()


def test_the_first_link_to_a_member_is_logged_and_further_ones_only_for_debugging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events, first, second = Events(caplog), FakeLink(), FakeLink()
    text = "peer b at 10.0.0.2:7101 is within reach"

    assert events.report(first, reachable=True) == ("INFO", text)
    events.links.others = [first]
    assert events.report(second, reachable=True) == ("DEBUG", text)
    assert events.unreachable == []


def test_a_lost_member_is_logged_and_probed_and_its_return_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events, link, other = Events(caplog), FakeLink(), FakeLink()
    events.links.others = [link, other]

    assert events.report(link, reachable=False) == (
        "WARNING",
        "peer b at 10.0.0.2:7101 is lost: it does not answer",
    )
    assert events.unreachable == ["b"]
    assert events.report(link, reachable=True)[0] == "INFO"
    assert events.report(link, reachable=True)[0] == "DEBUG"


def test_several_lost_links_to_a_member_are_logged_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events(caplog)
    first, second = [FakeLink(refusal=PeerUnavailable(f"silent for {each} s")) for each in (3, 5)]
    refused, elsewhere = FakeLink(refusal=AccessDenied("wrong key")), FakeLink("c")
    elsewhere.address = ("10.0.0.3", 7101)

    levels = [
        events.report(each, reachable=False)[0] for each in (first, second, refused, elsewhere)
    ]

    assert levels == ["WARNING", "DEBUG", "WARNING", "WARNING"]
    assert events.unreachable == ["b", "b", "b", "c"]
    events.report(first, reachable=True)
    assert events.report(first, reachable=False)[0] == "WARNING"


def test_a_leaving_member_is_no_warning_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events(caplog)
    leaving = PeerLeaving("10.0.0.2:7101: node b is leaving")
    links = [FakeLink(refusal=leaving), FakeLink(refusal=leaving)]
    later = FakeLink(refusal=PeerUnavailable("10.0.0.2:7101: no process listens"))

    assert events.report(links[0], reachable=False) == (
        "INFO",
        "peer b at 10.0.0.2:7101 is leaving",
    )
    assert events.report(links[1], reachable=False)[0] == "DEBUG"
    assert events.report(later, reachable=False)[0] == "DEBUG"
    assert events.unreachable == ["b", "b", "b"]


def test_a_reason_does_not_repeat_the_address(caplog: pytest.LogCaptureFixture) -> None:
    events = Events(caplog)

    _, text = events.report(
        FakeLink(refusal=PeerUnavailable("10.0.0.2:7101: it sent no welcome")), reachable=False
    )

    assert text == "peer b at 10.0.0.2:7101 is lost: it sent no welcome"


def test_an_address_that_never_answered_is_not_lost_and_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events(caplog)

    _, text = events.report(FakeLink("", AccessDenied("wrong key")), reachable=False)

    assert text == "peer at 10.0.0.2:7101 cannot be reached: wrong key"
    assert events.unreachable == []
