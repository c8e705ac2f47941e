"""Errors survive copies: pools of processes pickle them, and Celery stores their `args` as JSON."""

import copy
import json
import pickle
from pathlib import Path

import httpx
import pytest

import ringfence.blocking
from ringfence import errors
from ringfence.client.decision import SlotUnavailable, Source, Status, decide
from ringfence.integrations import fastapi, flask
from ringfence.integrations.decorator import OverLimit
from ringfence.integrations.httpx import TurnTooLate
from ringfence.rules import RuleSet
from ringfence.rules.loading.mapping import load_mapping
from ringfence.rules.loading.yaml_files import load_path
from ringfence.wire import BadMessage, Cause
from ringfence.wire.errors import WrongVersion

DENIED = decide((Status(False, None, 2, 0, 3.0, 60.0, 0.0, Source.OWNER),))


def error_of_rules():
    with pytest.raises(errors.ConfigError) as caught:
        load_mapping({"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unit": "day"}}]})
    return caught.value


ERRORS = [
    errors.ConfigError("wrong"),
    errors.InvalidLimit("wrong", field="amount"),
    errors.UntrustedPeer("wrong"),
    errors.AccessDenied("wrong"),
    errors.LocalProtocolError("wrong"),
    errors.RemoteProtocolError("wrong"),
    errors.PeerUnavailable("none", addresses=[("a", 1)]),
    OverLimit("a call of f", DENIED),
    SlotUnavailable(DENIED),
    TurnTooLate(httpx.Request("GET", "http://up.test/b"), DENIED),
    BadMessage(Cause.EMPTY, "a message must not be empty"),
    WrongVersion(1, 2),
    error_of_rules(),
]
every_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


@every_error
@pytest.mark.parametrize("copied", [copy.copy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copied_error_is_like_the_original(error, copied):
    other = copied(error)

    assert (type(other), str(other)) == (type(error), str(error))
    assert other.__dict__.keys() == error.__dict__.keys()
    assert getattr(other, "decision", None) == getattr(error, "decision", None)


@every_error
def test_the_representation_of_an_error_has_its_class_and_message(error):
    assert repr(error) == f"{type(error).__name__}({str(error)!r})"


@every_error
def test_json_can_contain_the_args_of_an_error_and_they_create_it_again(error):
    other = type(error)(*json.loads(json.dumps(error.args)))

    assert (str(other), other.args) == (str(error), error.args)
    assert getattr(other, "decision", None) == getattr(error, "decision", None)


def test_a_denial_that_is_created_again_has_its_wait_but_not_its_rule():
    with ringfence.blocking.local(RuleSet()) as limiter:
        limiter.check_limit("1/hour", "k")
        error = OverLimit("a call of f", limiter.check_limit("1/hour", "k"))
    other = OverLimit(*error.args)

    assert (str(other), other.retry_after) == (str(error), error.retry_after)
    assert (other.decision.limit, other.decision.remaining) == (1, 0)
    assert (other.decision.source, other.decision.rule) == (error.decision.source, None)


def test_a_missing_slot_that_is_created_again_has_the_message_with_the_rule():
    rules = load_mapping(
        {
            "domain": "api",
            "descriptors": [
                {
                    "key": "job",
                    "rate_limit": {
                        "unit": "minute",
                        "requests_per_unit": 1,
                        "algorithm": "concurrency",
                    },
                }
            ],
        }
    ).rules
    denied = Status(False, rules.rules()[0], 1, 0, 3.0, 60.0, 0.0, Source.OWNER)
    error = SlotUnavailable(decide([denied]))

    other = SlotUnavailable(*json.loads(json.dumps(error.args)))

    assert "api > job" in str(error)
    assert str(other) == str(error)


@pytest.mark.parametrize(
    "rejected",
    [
        flask.RateLimits,
        lambda address: fastapi.RateLimits(address, limit=address),
        lambda address: fastapi.RateLimits(address, limit="5/s").install(address),
        lambda address: fastapi.RateLimits(address, limit="5/s", block=[address]),
        lambda address: fastapi.RateLimits(address, limit=address + "&" * 200),
    ],
)
def test_the_error_for_an_address_in_the_wrong_place_does_not_show_its_token(rejected):
    secret = "00112233445566778899aabbccddeeff"

    with pytest.raises(errors.ConfigError, match=r"ringfence://\.\.\.") as caught:
        rejected(f"ringfence://app.{secret}@127.0.0.1:7101?ca=ca.pem")

    assert secret[:8] not in repr(caught.value)


def test_the_form_of_an_address_in_a_message_is_not_masked():
    form = "write ringfence://TOKEN@HOST:PORT, or ringfence://a1b2c3d4e5.example:7101?ca=ca.pem"

    assert str(errors.ConfigError(form)) == form


def test_a_token_that_was_taken_for_a_file_or_name_is_masked_but_a_hash_is_not():
    secret = "00112233445566778899AABBCCDDEEFF" * 2

    for before, after in (("", " is no file"), ("keys/", ":check"), ("--", "'.")):
        error = errors.ConfigError(f"{before}batch-1.{secret}{after}")
        assert str(error) == f"{before}batch-1....{after}"
    assert str(errors.ConfigError(f"a.{secret}x b.{secret}.pem")) == "a....x b.....pem"
    assert str(errors.ConfigError(f"a.{secret}x.{secret}")) == "a....x...."
    for text in (f"fingerprint {secret}", f"sha256:{secret}", f"it ends. {secret}"):
        assert str(errors.ConfigError(text)) == text


@pytest.mark.parametrize("name", ["rules/api.{}.yaml", "host.{}.svc.local", "a.{}-b"])
def test_names_of_files_and_hosts_with_hexadecimal_parts_are_shown(name):
    name = name.format("d4" * 16)

    assert str(errors.ConfigError(f"{name}: not found")) == f"{name}: not found"


def test_an_address_that_was_taken_for_a_path_is_masked_in_errors_of_files():
    address = "ringfence://app.00112233445566778899aabbccddeeff@127.0.0.1:7101?ca=ca.pem"

    with pytest.raises(errors.ConfigError, match=r"ringfence:/\.\.\.@127") as caught:
        load_path(Path(address))

    assert "0011" not in repr((caught.value, caught.value.args, caught.value.problems))
