import logging

import pytest

from ringfence.peering.internal_errors import InternalErrors

LOGGER = logging.getLogger("ringfence.test")

pytestmark = pytest.mark.internal_errors


class Errors:
    def __init__(self):
        self.now = 0.0
        self.seen = []
        self.errors = InternalErrors(LOGGER, lambda: self.now, self.seen.append)

    def meet(self, place="session", kind=ValueError):
        try:
            raise kind("broken")
        except (ValueError, KeyError) as error:
            self.errors.failed(place, error)


def test_each_error_is_counted_by_place_and_passed_on():
    made = Errors()
    for place in ("session", "gossip", "session"):
        made.meet(place)

    assert made.errors.by_place == {"session": 2, "gossip": 1}
    assert [type(error) for error in made.seen] == [ValueError] * 3


def test_one_cause_is_logged_with_its_traceback_once_a_minute(caplog):
    made = Errors()
    for second in range(61):
        made.now = float(second)
        made.meet()

    first, second = caplog.records
    assert "raise kind" in caplog.text
    assert "session" in first.getMessage()
    assert "59 more" in second.getMessage()
    assert (first.internal_error, second.internal_error) == (True, True)


def test_another_place_or_class_is_another_cause(caplog):
    made = Errors()
    made.meet()
    made.meet(place="gossip")
    made.meet(kind=KeyError)

    assert len(caplog.records) == 3


def test_causes_beyond_the_bound_are_counted_only(caplog):
    made = Errors()
    for number in range(400):
        made.meet(place=str(number))
    assert len(caplog.records) == 256
    assert made.errors.by_place.total() == 400

    made.now = 60.0
    made.meet(place="new")

    assert len(caplog.records) == 257


def test_the_cause_of_a_group_is_the_error_inside(caplog):
    made = Errors()
    for _ in range(2):
        try:
            raise ExceptionGroup("tasks", [ValueError("broken")])
        except ExceptionGroup as group:
            made.errors.failed("task", group)

    assert len(caplog.records) == 1
