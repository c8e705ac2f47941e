"""HTTP API of the gateway, as programs in other languages use it."""

import json
from unittest.mock import patch

import msgspec
import pytest
import trio
from trio.testing import MockClock

from ringfence.errors import AccessDenied
from ringfence.gateway.http.http_types import Response
from ringfence.gateway.process.worker import make_api
from tests.node.cluster import world
from tests.ringfence.gateway.gateway import api, ask, header, json_of, post, settings_of

X = {"domain": "api", "descriptors": [{"client": "x"}]}


async def test_a_check_spends_units_and_returns_the_remaining_ones() -> None:
    async with api() as gateway:
        answers = [json_of(await post(gateway, "/v1/check", X)) for _ in range(4)]

    assert [each["remaining"] for each in answers] == [2, 1, 0, 0]
    assert [each["allowed"] for each in answers] == [True, True, True, False]
    denied = answers[3]
    assert (denied["limit"], denied["retry_after"], denied["source"]) == (3, 30.0, "owner")
    assert (denied["rule"], denied["permanent"]) == ("api > client", False)
    assert [each["allowed"] for each in denied["statuses"]] == [False]


async def test_an_undecided_check_has_null_as_remaining_units(autojump_clock: MockClock) -> None:
    async with world("a") as w, w.client() as limiter:
        gateway = make_api(limiter, settings_of(), None)
        await w.crash("a")
        for path in ("check", "peek", "charge", "refund", "reset"):
            for key in ("client", "strict"):
                body = {"domain": "api", "descriptors": [{key: "x"}]}
                answer = json_of(await post(gateway, f"/v1/{path}", body))
                assert (answer["limit"], answer["source"]) == (5, "policy")
                assert answer["remaining"] is None
                assert answer["statuses"][0]["remaining"] is None


async def test_several_descriptors_are_all_or_nothing() -> None:
    both = {"domain": "api", "descriptors": [{"client": "x"}, {"wide": "w"}], "cost": 3}
    async with api() as gateway:
        assert json_of(await post(gateway, "/v1/check", both))["allowed"]
        assert not json_of(await post(gateway, "/v1/check", both))["allowed"]
        left = json_of(
            await post(gateway, "/v1/peek", {"domain": "api", "descriptors": [{"wide": "w"}]})
        )

    assert left["remaining"] == 7


async def test_entries_are_matched_in_the_order_of_the_body() -> None:
    async with api() as gateway:
        matching = await post(
            gateway, "/v1/check", b'{"domain":"api","descriptors":[{"path":"/a","client":"x"}]}'
        )
        swapped = await post(
            gateway, "/v1/check", b'{"domain":"api","descriptors":[{"client":"x","path":"/a"}]}'
        )

    assert (json_of(matching)["limit"], json_of(swapped)["limit"]) == (2, None)


async def test_decisions_of_several_domains_have_the_order_of_the_checks() -> None:
    other = {"domain": "nobody", "descriptors": [{"client": "x"}]}
    expensive = {**X, "cost": 2}
    async with api() as gateway:
        answer = json_of(await post(gateway, "/v1/check", {"checks": [X, other, expensive, X]}))

    assert [each["limit"] for each in answer["decisions"]] == [3, None, 3, 3]
    assert [each["allowed"] for each in answer["decisions"]] == [True, True, True, False]


async def test_all_operations_accept_an_ad_hoc_limit() -> None:
    ad_hoc = {"limit": "5/minute", "key": ["user", "42"]}
    async with api() as gateway:
        steps = [
            await post(gateway, "/v1/check", {**ad_hoc, "cost": 4}),
            await post(gateway, "/v1/peek", ad_hoc),
            await post(gateway, "/v1/refund", {**ad_hoc, "cost": 2}),
            await post(gateway, "/v1/reset", ad_hoc),
        ]

    assert [json_of(each)["remaining"] for each in steps] == [1, 1, 3, 5]


@pytest.mark.parametrize(
    ("limit", "remaining"),
    [
        ("5 per minute", 4),
        ("5/second burst 20", 19),
        ("100/3 hours fixed_window", 99),
        ("10/day calendar timezone Europe/Berlin", 9),
        ("10/minute soft 10%", 10),
        ("4 concurrent ttl 10s", 3),
    ],
)
async def test_a_limit_has_the_same_text_as_in_python(limit: str, remaining: int) -> None:
    async with api() as gateway:
        answer = json_of(await post(gateway, "/v1/check", {"limit": limit, "key": ["user", "42"]}))

    assert (answer["allowed"], answer["remaining"]) == (True, remaining)


@pytest.mark.parametrize(
    ("period", "seconds"), [("month", 30 * 86_400), ("3 year", 3 * 365 * 86_400)]
)
async def test_a_limit_may_have_a_period_of_months_or_years(period: str, seconds: int) -> None:
    wanted = {"limit": f"5/{period} token_bucket", "key": ["user", "42"], "cost": 5}
    async with api() as gateway:
        answer = json_of(await post(gateway, "/v1/check", wanted))

    assert (answer["limit"], answer["reset_after"]) == (5, seconds)


async def test_a_charge_beyond_the_limit_is_counted_and_reported() -> None:
    ad_hoc = {"limit": "5/minute fixed_window", "key": ["user", "42"]}
    async with api() as gateway:
        by_rule = [json_of(await post(gateway, "/v1/charge", {**X, "cost": 2})) for _ in range(3)]
        denied = json_of(await post(gateway, "/v1/check", X))
        by_limit = json_of(await post(gateway, "/v1/charge", {**ad_hoc, "cost": 9}))
        refunded = json_of(await post(gateway, "/v1/refund", {**X, "cost": 5}))
        invalid = await post(gateway, "/v1/charge", {**X, "cost": -1})

    assert [each["allowed"] for each in by_rule] == [True, False, False]
    assert [each["remaining"] for each in by_rule] == [1, 0, 0]
    assert by_rule[2]["retry_after"] == denied["retry_after"] == 30.0
    assert (by_limit["allowed"], by_limit["limit"]) == (False, 5)
    assert refunded["remaining"] == 2
    assert invalid.status == 400


async def test_peeks_spend_nothing_and_refunds_and_resets_free_units() -> None:
    async with api() as gateway:
        await post(gateway, "/v1/check", {**X, "cost": 3})
        steps = [
            await post(gateway, "/v1/peek", X),
            await post(gateway, "/v1/peek", {"checks": [X]}),
            await post(gateway, "/v1/refund", X),
            await post(gateway, "/v1/reset", X),
        ]

    peeked, many, refunded, reset = [json_of(each) for each in steps]
    assert (peeked["allowed"], peeked["remaining"]) == (False, 0)
    assert [each["allowed"] for each in many["decisions"]] == [False]
    assert (refunded["remaining"], reset["remaining"]) == (1, 3)


async def test_a_refund_with_an_age_leaves_the_units_of_a_later_window() -> None:
    ad_hoc = {"limit": "5/minute fixed_window", "key": ["a"]}
    async with api() as gateway:
        for counter in (X, ad_hoc):
            await post(gateway, "/v1/check", {**counter, "cost": 2})
        late_and_in_time = [
            await post(gateway, "/v1/refund", {**counter, "age": age})
            for counter in (X, ad_hoc)
            for age in (30.5, 29.5)  # The window began 30 seconds before.
        ]
        invalid = await post(gateway, "/v1/refund", {**X, "age": -1})

    assert [json_of(each)["refunded"] for each in late_and_in_time] == [0, 1, 0, 1]
    assert invalid.status == 400
    assert "age" in json_of(invalid)["detail"]


async def test_a_refund_returns_the_units_that_it_gave_back() -> None:
    ad_hoc = {"limit": "5/minute", "key": ["user", "42"]}
    async with api() as gateway:
        await post(gateway, "/v1/check", {**X, "cost": 2})
        steps = [await post(gateway, "/v1/refund", {**X, "cost": cost}) for cost in (3, 1, 0)]
        nothing_spent = json_of(await post(gateway, "/v1/refund", ad_hoc))
        check = json_of(await post(gateway, "/v1/check", ad_hoc))

    answers = [json_of(each) for each in steps]
    assert [each["refunded"] for each in answers] == [2, 0, 0]
    assert ["hint" in each for each in answers] == [False, True, False]
    assert nothing_spent["refunded"] == 0
    assert nothing_spent["hint"].startswith("nothing was refunded: no units were spent")
    assert "refunded" not in check


@pytest.mark.parametrize(
    ("domain", "entries", "hint"),
    [
        ("api", {"cleint": "x"}, "domain 'api' has no rule for descriptor key 'cleint', so it is"),
        ("api", {"cleint": "x"}, "did you mean 'client'?"),
        ("api", {"client": "x", "path": "/"}, "the order of the keys counts: did you mean"),
        ("apu", {"client": "x"}, "domain 'apu' has no rules, so its checks are never limited; did"),
        ("api", {"only": "y"}, "the rules for descriptor key 'only' in domain 'api' have other va"),
    ],
)
async def test_an_answer_without_a_rule_has_a_hint(
    domain: str, entries: dict[str, str], hint: str
) -> None:
    body = {"domain": domain, "descriptors": [entries]}
    async with api() as gateway:
        alone = json_of(await post(gateway, "/v1/check", body))
        among_others = json_of(await post(gateway, "/v1/check", {"checks": [X, body]}))
        matched = json_of(await post(gateway, "/v1/check", X))

    assert (alone["allowed"], alone["source"]) == (True, "no_rule")
    assert hint in alone["hint"]
    assert [each.get("hint") for each in among_others["decisions"]] == [None, alone["hint"]]
    assert "hint" not in matched


async def test_hints_for_unmatched_requests_are_bounded() -> None:
    async with api() as gateway:
        hints = [
            json_of(
                await post(
                    gateway, "/v1/check", {"domain": f"no{i}", "descriptors": [{"client": "x"}]}
                )
            )["hint"]
            for i in range(300)
        ]

    assert hints[0].startswith("domain 'no0' has no rules")
    assert hints[299] == "no rule matches the domain and the descriptors, so nothing was limited"


@pytest.mark.parametrize(("requested", "maximum"), [(3600, 5.0), (5, 60.0)])
async def test_acquire_does_not_wait_if_its_maximum_is_too_short(
    autojump_clock, requested, maximum
) -> None:
    async with api(max_wait=maximum) as gateway:
        await post(gateway, "/v1/check", {**X, "cost": 3})
        began = trio.current_time()
        answer = json_of(await post(gateway, "/v1/acquire", {**X, "max_wait": requested}))
        waited = trio.current_time() - began

    assert not answer["allowed"], "units are free after 30 s, and the request waits at most 5 s"
    assert waited == 0, "a wait that is too short is answered immediately"


async def test_acquire_denies_a_turn_in_a_queue_that_comes_after_the_maximum(
    autojump_clock,
) -> None:
    queue = {"limit": "1/s queue burst 3", "key": ["x"]}
    async with api() as gateway:
        await post(gateway, "/v1/check", queue)
        denied = json_of(await post(gateway, "/v1/acquire", {**queue, "max_wait": 0.5}))
        allowed = json_of(await post(gateway, "/v1/acquire", {**queue, "max_wait": 2}))

    assert (denied["allowed"], denied["delay"]) == (False, 0.0)
    assert 0.5 < denied["retry_after"] <= 1.0
    assert (allowed["allowed"], allowed["delay"]) == (True, 0.0)


async def test_waiting_requests_are_bounded_by_caller_and_in_total(autojump_clock) -> None:
    body = {**X, "max_wait": 40}
    async with (
        api(max_wait=60.0, max_waiting=3, max_waiting_per_caller=2) as gateway,
        trio.open_nursery() as nursery,
    ):
        await post(gateway, "/v1/check", {**X, "cost": 3})

        async def acquire(peer: str) -> Response:
            return await ask(gateway, "POST", "/v1/acquire", body, peer=peer)

        for peer in ("127.0.0.1", "127.0.0.1", "127.0.0.2"):
            nursery.start_soon(acquire, peer)
        await trio.testing.wait_all_tasks_blocked()
        assert (await acquire("127.0.0.1")).status == 429
        refused = await acquire("127.0.0.2")
        assert (refused.status, header(refused, "Retry-After")) == (503, "1")
        assert gateway.counters["refused_waiting"] == 2
        nursery.cancel_scope.cancel()

    async with api(max_wait=60.0, max_waiting=1) as gateway:
        await post(gateway, "/v1/check", {**X, "cost": 3})
        for _ in range(2):
            assert (await ask(gateway, "POST", "/v1/acquire", body)).status == 200


async def test_should_allow_request_has_the_fields_of_the_textbook() -> None:
    async with api() as gateway:
        sent = {"clientId": "c", "timestamp": 1640995200}
        answers = [json_of(await post(gateway, "/shouldAllowRequest", sent)) for _ in range(4)]

    assert answers == [{"allowed": True}] * 3 + [{"allowed": False}]


async def test_msgpack_requests_get_msgpack_or_json_on_request() -> None:
    body = msgspec.msgpack.encode(X)
    kind = {"Content-Type": "application/msgpack"}
    async with api() as gateway:
        packed = await post(gateway, "/v1/check", body, kind)
        plain = await post(gateway, "/v1/check", body, {**kind, "Accept": "application/json"})

    assert packed.content_type == "application/msgpack"
    assert msgspec.msgpack.decode(packed.body)["remaining"] == 2
    assert (plain.content_type, json_of(plain)["remaining"]) == ("application/json", 1)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "it must be a whole object, got an empty or truncated body"),
        (rb'{"domain": "\ud800"}', r"or an escape such as \ud800 without its second half"),
        (
            {**X, "limit": "5/minute"},
            "invalid body: domain must not be combined with the other fields; ask either with",
        ),
        (b'{"domain"', "the body cannot be read: it must be a whole object"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 20_000, "recursion"),
        ({"domain": "api"}, "descriptors"),
        ({**X, "cost": -1}, "invalid body: cost must be a whole number >= 0, got -1"),
        ({**X, "cost": 2**53}, "cost must be a whole number <= 9007199254740991, got 9007"),
        ({"checks": [X, {**X, "cost": -1}]}, "checks[1].cost must be a whole number >= 0, got -1"),
        ({**X, "cost": True}, "cost"),
        ({**X, "kost": 1}, "unknown field `kost`; did you mean 'cost'?"),
        ({"domain": "api", "descriptors": []}, "descriptors"),
        ({"domain": "api", "descriptors": [{}]}, "descriptors"),
        (
            {"domain": "api", "descriptors": [{"client": 7}]},
            "descriptors[0] must have text values, got int",
        ),
        (
            {"domain": "api", "descriptors": [{"client": "x" * 8193}]},
            "descriptors[0] must have text values of at most 8192 characters",
        ),
        ({"limit": "5 a minute", "key": ["x"]}, "limit"),
        ({"limit": "5/minute", "key": []}, "key"),
        ({"checks": []}, "checks"),
        ({"limit": "5/minute", "key": "x"}, 'key is a list of strings, as in ["user", "42"]'),
        (
            {"limit": "5/minute tokenbucket", "key": ["x"]},
            "limit '5/minute tokenbucket', at 'tokenbucket', character 10: unknown option; did you "
            "mean 'token_bucket'?",
        ),
        ({"limit": "5/fortnight", "key": ["x"]}, "unknown unit"),
        ({"limit": "5/minute calendar", "key": ["x"]}, "'calendar' needs a period of one day"),
        ({"limit": "5/" + "9" * 200 + "s", "key": ["x"]}, "at most 200 characters"),
        ({"checks": [{"limit": "5/minute", "key": ["x"]}]}, "ask for a limit alone"),
        ({"checks": [{"domain": "api"}]}, "checks"),
    ],
)
async def test_the_error_of_an_invalid_body_states_the_position(body: object, word: str) -> None:
    async with api() as gateway:
        response = await post(gateway, "/v1/check", body)

        assert (response.status, response.content_type) == (400, "application/problem+json")
        assert word in json_of(response)["detail"]
        assert gateway.counters["refused_bad_body"] == 1


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/json, application/msgpack;q=0.1", "application/json"),
        ("application/msgpack;q=0.1, application/json;q=0.9", "application/json"),
        ("application/json;q=0.5, application/msgpack", "application/msgpack"),
        ("application/msgpack;q=0, application/json;q=0.001", "application/json"),
        ("application/msgpack, application/json", "application/msgpack"),
        ("text/html, application/msgpack; Q=0.3", "application/msgpack"),
        ("application/msgpack;q=1.5.2, application/json;q=0.9", "application/msgpack"),
    ],
)
async def test_the_preferred_format_of_several_is_sent(accept: str, kind: str) -> None:
    async with api() as gateway:
        response = await post(gateway, "/v1/check", X, {"Accept": accept})

    assert (response.status, response.content_type) == (200, kind)


async def test_other_client_errors_have_standard_http_statuses() -> None:
    async with api(max_checks=2) as gateway:
        unknown_path = await ask(gateway, "GET", "/v2/check")
        wrong_method = await ask(gateway, "GET", "/v1/check")
        wrong_type = await post(gateway, "/v1/check", X, {"Content-Type": "text/csv"})
        too_many = await post(gateway, "/v1/check", {"checks": [X] * 3})

    assert [each.status for each in (unknown_path, wrong_method, wrong_type, too_many)] == [
        404,
        405,
        415,
        413,
    ]
    assert header(wrong_method, "Allow") == "POST"
    assert gateway.counters["refused_too_large"] == 1


async def test_a_call_that_the_cluster_refuses_to_the_gateways_token_has_status_503() -> None:
    async with api() as gateway:
        refusal = AccessDenied("the token lacks the scope reset")
        with patch.object(gateway._limiter, "reset", side_effect=refusal):
            answer = await post(gateway, "/v1/reset", X)

    assert answer.status == 503, "nginx would deny requests with 403"
    assert json_of(answer)["detail"] == f"the cluster refuses the gateway's token: {refusal}"


async def test_health_counters_and_head_requests_are_answered() -> None:
    async with api() as gateway:
        await post(gateway, "/v1/check", X)
        alive, ready = [await ask(gateway, "GET", path) for path in ("/healthz", "/readyz")]
        head = await ask(gateway, "HEAD", "/healthz")
        counters = json_of(await ask(gateway, "GET", "/v1/counters"))

    assert (json_of(alive), json_of(ready)) == ({"status": "alive"}, {"status": "ready"})
    assert (head.status, head.body) == (200, b"")
    assert counters["/v1/check"] == 1


async def test_the_openapi_document_has_the_paths_and_the_configured_maximum() -> None:
    async with api(max_checks=7) as gateway:
        document = json.loads((await ask(gateway, "GET", "/openapi.json")).body)

    assert {"/v1/check", "/json", "/metrics"} <= set(document["paths"])
    assert (
        document["components"]["schemas"]["CheckManyRequest"]["properties"]["checks"]["maxItems"]
        == 7
    )
