"""Answers that cannot be encoded: refused, counted, and logged at a bounded rate."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from node.context.containment import Containment
from node.metrics.counters import Counters
from node.requests.sessions.request_intake import RequestIntake
from ringfence.wire import Answer, ErrorCode, Refused, decode, empty_results


@pytest.mark.internal_errors
def test_an_answer_that_cannot_be_encoded_refuses_its_request_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    containment = Containment(logging.getLogger("ringfence.node"), lambda: 0.0)
    api: Any = SimpleNamespace(
        containment=containment, counters=Counters(), dispatcher=None, caches=None
    )
    parts: list[Any] = [None] * 5
    intake = RequestIntake(api, *parts)
    results = empty_results(1)
    results.outcomes.limits = [-1]

    payloads = [intake._encoded(Answer(seq, 0, 0, results)) for seq in (1, 2, 3)]

    refusals = [decode(payload) for payload in payloads]
    assert [(each.seq, each.code) for each in refusals if isinstance(each, Refused)] == [
        (seq, ErrorCode.INTERNAL) for seq in (1, 2, 3)
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "internal error in encoding; its request was refused, all others continue"
    ]
    assert containment.by_place["encoding"] == 3
