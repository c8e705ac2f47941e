"""Rate limit header fields in each style, parsed by an independent parser."""

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringfence.blocking
from ringfence import ConfigError, Source, Status, parse_limit
from ringfence.client.decision import NO_RULE, UNDECIDED, unlimited
from ringfence.http import LimitHeaders, Refused
from ringfence.rules import adhoc_rule
from tests.ringfence.http.decisions import allowed, answer, denied, rule

MINUTE = rule("minute")


def test_ietf_fields_equal_the_examples_of_the_draft() -> None:
    fields = LimitHeaders("ietf").of(answer(allowed(rule("default"))))

    assert fields == [
        ("RateLimit-Policy", '"default";q=100;w=60'),
        ("RateLimit", '"default";r=50;t=30'),
    ]


def test_several_policies_form_one_list_as_in_the_example_of_the_draft() -> None:
    decision = answer(allowed(rule("permin", "50/minute"), 9), allowed(rule("perhr", "1000/hour")))

    fields = dict(LimitHeaders("ietf").of(decision))

    assert fields["RateLimit-Policy"] == '"permin";q=50;w=60, "perhr";q=1000;w=3600'
    assert fields["RateLimit"] == '"permin";r=9;t=30'


def test_a_refusal_names_the_denying_limit_among_equal_ones() -> None:
    decision = answer(allowed(rule("spent"), 0), denied(rule("refusing", "5/s"), 0.2))

    fields = dict(LimitHeaders("both").of(decision))

    assert fields["RateLimit"] == '"refusing";r=0;t=1'
    assert fields["X-RateLimit-Limit"] == "5"
    assert fields["Retry-After"] == "1"


def test_headers_describe_the_denying_limit_with_the_longest_wait() -> None:
    decision = answer(denied(rule("short"), 2.0), denied(rule("long"), 200.5))

    assert dict(LimitHeaders().of(decision))["RateLimit"] == '"long";r=0;t=201'


def test_the_x_style_has_the_customary_x_ratelimit_names() -> None:
    fields = LimitHeaders("x").of(answer(denied(MINUTE, 11.2)))

    assert fields == [
        ("Retry-After", "12"),
        ("X-RateLimit-Limit", "100"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "12"),
        ("X-RateLimit-Retry-After", "12"),
    ]


def test_reset_can_be_in_seconds_since_the_epoch() -> None:
    headers = LimitHeaders("x", reset="epoch", wall_clock=lambda: 1_700_000_000.5)

    fields = dict(headers.of(answer(allowed(MINUTE))))

    assert fields["X-RateLimit-Reset"] == "1700000031"


def test_a_repeated_decision_gets_unmodified_fields_again() -> None:
    headers, decision = LimitHeaders("x"), answer(allowed(MINUTE, 9))
    first = headers.of(decision)
    before = [*first]
    first.clear()

    assert headers.of(decision) == before
    assert dict(headers.of(answer(allowed(MINUTE, 8))))["X-RateLimit-Remaining"] == "8"


def test_the_reset_epoch_advances_for_a_repeated_decision() -> None:
    times = iter([1_700_000_000.5, 1_700_000_007.5])
    headers = LimitHeaders("x", reset="epoch", wall_clock=lambda: next(times))
    decision = answer(allowed(MINUTE))

    resets = [dict(headers.of(decision))["X-RateLimit-Reset"] for _ in range(2)]

    assert resets == ["1700000031", "1700000038"]


def test_the_style_none_sends_only_retry_after() -> None:
    for style in ("none", None):
        headers = LimitHeaders(style)

        assert headers.of(answer(denied(MINUTE, 3.0))) == [("Retry-After", "3")]
        assert headers.of(answer(allowed(MINUTE))) == []


@given(wait=st.floats(0, 1e9), reset=st.floats(0, 1e9), style=st.sampled_from(["ietf", "both"]))
def test_retry_after_is_a_positive_integer_and_never_too_early(
    wait: float, reset: float, style: str
) -> None:
    fields = dict(LimitHeaders(style).of(answer(denied(MINUTE, wait, reset))))

    retry_after = int(fields["Retry-After"])
    assert max(1, wait) <= retry_after < max(1, wait) + 1
    ((_, parameters),) = http_sf.parse(fields["RateLimit"].encode(), tltype="list")
    assert parameters["t"] <= retry_after


@given(remaining=st.integers(0, 2**53), reset=st.floats(0, 1e12))
def test_an_allowed_response_never_has_retry_after(remaining: int, reset: float) -> None:
    fields = dict(LimitHeaders("both").of(answer(allowed(MINUTE, remaining, reset))))

    assert not {"Retry-After", "X-RateLimit-Retry-After"} & set(fields)


def test_retry_after_is_absent_if_a_retry_cannot_succeed() -> None:
    fields = dict(LimitHeaders("both").of(answer(denied(MINUTE, None))))

    assert "Retry-After" not in fields
    assert fields["X-RateLimit-Remaining"] == "0"


@given(name=st.text(min_size=1), amount=st.integers(1, 2**53 - 1), ms=st.integers(1, 10**9))
def test_fields_are_valid_structured_fields_for_any_rule_name(
    name: str, amount: int, ms: int
) -> None:
    limit = f"{amount}/{ms / 1000:.3f} s"

    fields = dict(LimitHeaders("ietf").of(answer(allowed(rule(name, limit), amount, 1e17))))

    for field in fields.values():
        assert http_sf.ser(http_sf.parse(field.encode(), tltype="list")) == field
    ((_, policy),) = http_sf.parse(fields["RateLimit-Policy"].encode(), tltype="list")
    ((_, state),) = http_sf.parse(fields["RateLimit"].encode(), tltype="list")
    assert policy["w"] >= ms / 1000
    assert policy["q"] == state["r"] == min(amount, 10**15 - 1)


def test_a_concurrency_limit_has_a_unit_and_no_window() -> None:
    fields = dict(LimitHeaders().of(answer(allowed(rule("jobs", "5 concurrent"), 3))))

    assert fields["RateLimit-Policy"] == '"jobs";q=5;qu="concurrent-requests"'


def test_an_ad_hoc_limit_is_named_by_amount_and_period() -> None:
    fields = dict(LimitHeaders().of(answer(allowed(adhoc_rule(parse_limit("5/s burst 9"))))))

    assert fields["RateLimit-Policy"] == '"5/second burst 9";q=5;w=1'


@pytest.mark.parametrize("status", [NO_RULE, unlimited(MINUTE)])
def test_headers_are_absent_if_no_limit_applies(status: object) -> None:
    assert LimitHeaders("both").of(answer(status)) == []  # type: ignore[arg-type]


def test_headers_omit_limits_in_shadow_mode() -> None:
    shadow = allowed(rule("trial", shadow=True), 0)

    assert LimitHeaders("both").of(answer(shadow)) == []
    fields = dict(LimitHeaders().of(answer(shadow, allowed(MINUTE, 7))))
    assert fields["RateLimit"] == '"minute";r=7;t=30'
    assert "trial" not in fields["RateLimit-Policy"]


@pytest.mark.parametrize(
    ("status", "mark"),
    [
        (allowed(MINUTE, source=Source.POLICY), "allow"),
        (UNDECIDED, "allow"),
        (denied(MINUTE, 1.0, source=Source.POLICY), "deny"),
    ],
)
def test_headers_mark_an_outage_and_contain_no_count(status: object, mark: str) -> None:
    fields = dict(LimitHeaders("both").of(answer(status)))  # type: ignore[arg-type]

    assert fields.pop("Ringfence-Outage") == mark
    assert set(fields) <= {"Retry-After"}


@pytest.mark.parametrize(
    ("one", "other", "mark", "status"),
    [
        (allowed(MINUTE, source=Source.POLICY), allowed(MINUTE, source=Source.LOCAL), "allow", 0),
        (allowed(MINUTE, source=Source.POLICY), denied(MINUTE, source=Source.LOCAL), "local", 429),
        (denied(MINUTE, source=Source.POLICY), denied(MINUTE, source=Source.LOCAL), "deny", 503),
        (denied(MINUTE, source=Source.POLICY), allowed(MINUTE, source=Source.LOCAL), "deny", 503),
        (allowed(MINUTE, source=Source.POLICY), denied(MINUTE), "allow", 429),
        (allowed(MINUTE), denied(MINUTE, source=Source.LOCAL), "local", 429),
    ],
)
def test_of_several_policies_the_one_that_decided_is_marked(
    one: Status, other: Status, mark: str, status: int
) -> None:
    for statuses in ((one, other), (other, one)):
        decision = answer(*statuses)
        assert dict(LimitHeaders().of(decision))["Ringfence-Outage"] == mark
        assert decision.allowed or Refused.of(decision).status == status


def test_headers_mark_a_local_decision_during_an_outage() -> None:
    alone = allowed(MINUTE, source=Source.LOCAL)

    fields = dict(LimitHeaders().of(answer(alone)))

    assert fields["Ringfence-Outage"] == "local"
    assert fields["RateLimit"] == '"minute";r=50;t=30'


def test_decisions_of_an_in_process_limiter_mark_no_outage() -> None:
    limit = {"unit": "hour", "requests_per_unit": 2, "on_failure": "local"}
    rules = {"domain": "api", "descriptors": [{"key": "user", "rate_limit": limit}]}
    with ringfence.blocking.local(rules) as limiter:
        decision = limiter.check("api", {"user": "a"})

    assert "Ringfence-Outage" not in dict(LimitHeaders().of(decision))


def test_headers_show_a_changed_limit_of_a_rule() -> None:
    headers = LimitHeaders()
    headers.of(answer(allowed(rule("minute", "100/minute"))))

    fields = dict(headers.of(answer(allowed(rule("minute", "7/minute")))))

    assert fields["RateLimit-Policy"] == '"minute";q=7;w=60'


@pytest.mark.parametrize("settings", [{"style": "github"}, {"reset": "tomorrow"}])
def test_the_error_for_an_unknown_style_lists_the_known_ones(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="must be one of"):
        LimitHeaders(**settings)  # type: ignore[arg-type]
