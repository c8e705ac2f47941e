"""Errors survive copies: a pool of processes pickles what its functions raise."""

import copy
import pickle

import httpx
import pytest

from ringfence import errors
from ringfence.client.decision import SlotUnavailable, Source, Status, decide
from ringfence.integrations.decorator import OverLimit
from ringfence.integrations.httpx import TurnTooLate
from ringfence.rules.loading.mapping import load_mapping

DENIED = decide((Status(False, None, 2, 0, 3.0, 60.0, 0.0, Source.OWNER),))


def error_of_rules():
    with pytest.raises(errors.ConfigError) as caught:
        load_mapping({"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unit": "day"}}]})
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigError("wrong"),
        errors.InvalidLimit("wrong", field="amount"),
        errors.PeerUnavailable("none", addresses=[("a", 1)]),
        OverLimit("a call of f", DENIED),
        SlotUnavailable(DENIED),
        TurnTooLate(httpx.Request("GET", "http://up.test/b"), DENIED),
        error_of_rules(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("copied", [copy.copy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copied_error_is_like_the_original(error, copied):
    other = copied(error)

    assert (type(other), str(other)) == (type(error), str(error))
    assert other.__dict__.keys() == error.__dict__.keys()
    assert getattr(other, "decision", None) == getattr(error, "decision", None)
