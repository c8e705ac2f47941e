"""Slots of concurrency limits over HTTP: acquired, renewed and released by a token."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path

import pytest

import ringfence
from ringfence.gateway.http.http_types import HttpProblem
from ringfence.gateway.http.slot_tokens import MAX_SLOT_TOKEN, SlotTokens
from ringfence.gateway.process.tokens import load_tokens
from ringfence.gateway.process.worker import make_api
from ringfence.limiter import Algorithm, Limit
from ringfence.wire import Batch, Op, Request, encode
from ringfence.wire.credentials import token_digest
from tests.ringfence.gateway.gateway import (
    RULES,
    HandClock,
    api,
    ask,
    json_of,
    post,
    settings_of,
)

JOB = {"domain": "api", "descriptors": [{"job": "j"}]}
AD_HOC = {"limit": "2 concurrent ttl 10s", "key": ["job", "7"]}
SECRET = bytes(range(16))
CLUSTER = f"ringfence://app.{SECRET.hex()}@127.0.0.1:7101"


def slots_of(slot_ids: list[int], key: bytes = b"\0" * 8 + b"key") -> Batch:
    count = len(slot_ids)
    return Batch(Op.REFUND, [key] * count, [1] * count, slot_ids=slot_ids)


@pytest.mark.parametrize(("body", "period"), [(JOB, 60.0), (AD_HOC, 10.0)])
@pytest.mark.parametrize("path", ["/v1/check", "/v1/acquire"])
async def test_a_slot_is_acquired_renewed_and_released(
    path: str, body: dict[str, object], period: float
) -> None:
    async with api() as gateway:
        acquired = json_of(await post(gateway, path, body))
        second = json_of(await post(gateway, path, body))
        full = json_of(await post(gateway, "/v1/check", body))
        slots = {"slots": acquired["slots"]}
        renewed = json_of(await post(gateway, "/v1/renew", slots))
        released = json_of(await post(gateway, "/v1/release", slots))
        free = json_of(await post(gateway, "/v1/peek", body))

    assert (acquired["allowed"], acquired["slots_expire_after"]) == (True, period)
    assert second["slots"] != acquired["slots"]
    assert not full["allowed"]
    assert "slots" not in full
    assert renewed == {"renewed": True, "slots_expire_after": period}
    assert released == {"released": 1}
    assert free["remaining"] == 1


async def test_a_second_release_reports_that_nothing_was_released() -> None:
    async with api() as gateway:
        mine, _ = [json_of(await post(gateway, "/v1/check", JOB)) for _ in range(2)]
        slots = {"slots": mine["slots"]}
        first, second = [json_of(await post(gateway, "/v1/release", slots)) for _ in range(2)]
        renewed = json_of(await post(gateway, "/v1/renew", slots))
        left = json_of(await post(gateway, "/v1/peek", JOB))["remaining"]

    assert first == {"released": 1}
    assert second["released"] == 0
    assert second["hint"].startswith("nothing to release: the slots were released before")
    assert (renewed["renewed"], renewed["slots_expire_after"]) == (False, 0.0)
    assert "acquire new ones" in renewed["hint"]
    assert left == 1, "the slot of the other caller is still held"


async def test_a_renewed_slot_outlives_the_period_and_other_slots_expire() -> None:
    clock = HandClock()
    async with ringfence.local(RULES, clock=clock) as limiter:
        gateway = make_api(limiter, settings_of())
        kept, dropped = [json_of(await post(gateway, "/v1/check", JOB)) for _ in range(2)]
        clock.time += 40 * 10**9
        await post(gateway, "/v1/renew", {"slots": kept["slots"]})
        clock.time += 40 * 10**9
        released = [
            json_of(await post(gateway, "/v1/release", {"slots": each["slots"]}))["released"]
            for each in (kept, dropped)
        ]

    assert released == [1, 0]


async def test_one_token_holds_the_slots_of_all_descriptors() -> None:
    both = {"domain": "api", "descriptors": [{"job": "a"}, {"client": "x"}, {"job": "b"}]}
    async with api() as gateway:
        acquired = json_of(await post(gateway, "/v1/check", both))
        released = json_of(await post(gateway, "/v1/release", {"slots": acquired["slots"]}))
        left = [
            json_of(await post(gateway, "/v1/peek", {"domain": "api", "descriptors": [each]}))
            for each in both["descriptors"]
        ]

    assert released == {"released": 2}
    assert [each["remaining"] for each in left] == [2, 2, 2], "the unit of client=x stays spent"


async def test_each_of_many_checks_has_its_own_token() -> None:
    async with api() as gateway:
        checks = {"checks": [JOB, {"domain": "api", "descriptors": [{"client": "x"}]}, JOB]}
        decisions = json_of(await post(gateway, "/v1/check", checks))["decisions"]
        released = [
            json_of(await post(gateway, "/v1/release", {"slots": decisions[at]["slots"]}))
            for at in (0, 2)
        ]

    assert "slots" not in decisions[1]
    assert released == [{"released": 1}] * 2


@pytest.mark.parametrize("path", ["/v1/renew", "/v1/release"])
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "empty or truncated"),
        ({}, 400, "slots"),
        ({"slots": ""}, 400, "slots must be the unchanged field `slots`"),
        ({"slots": 7}, 400, "slots must be the unchanged field `slots`"),
        ({"slots": "a b"}, 400, "slots must be the unchanged field `slots`"),
        ({"slots": "a" * (MAX_SLOT_TOKEN + 1)}, 400, "slots must be the unchanged field `slots`"),
        ({"slot": "abc"}, 400, "did you mean 'slots'?"),
        ({"slots": "abc"}, 403, "slots must be the unchanged field `slots`"),
        ({"slots": "abcde"}, 403, "got 'abcde'; send it as it was received, or acquire again"),
        ({"slots": "A" * 300}, 403, "got 'AAAAAAAAAAAAAAAAAAAA...'"),
    ],
)
async def test_invalid_slots_are_rejected_with_the_reason(
    path: str, body: object, status: int, words: str
) -> None:
    async with api() as gateway:
        response = await post(gateway, path, body)

    assert (response.status, response.content_type) == (status, "application/problem+json")
    assert words in json_of(response)["detail"]


async def test_an_altered_token_releases_nothing() -> None:
    async with api(cluster=CLUSTER) as gateway:
        token = json_of(await post(gateway, "/v1/check", JOB))["slots"]
        raw = urlsafe_b64decode(token + "=" * (-len(token) % 4))
        for at in range(len(raw)):
            altered = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
            text = urlsafe_b64encode(altered).decode().rstrip("=")
            response = await post(gateway, "/v1/release", {"slots": text})
            assert response.status == 403
        released = json_of(await post(gateway, "/v1/release", {"slots": token}))

    assert released == {"released": 1}


def test_a_token_is_valid_only_with_the_same_token_for_the_cluster() -> None:
    slots = slots_of([7])
    token = SlotTokens(CLUSTER).write(slots)

    assert SlotTokens(CLUSTER).read(token) == slots
    for other in (f"ringfence://app.{'00' * 16}@127.0.0.1:7101", "ringfence://127.0.0.1:7101"):
        with pytest.raises(HttpProblem):
            SlotTokens(other).read(token)


def test_a_token_with_another_request_is_rejected() -> None:
    tokens = SlotTokens(CLUSTER)
    for op in (Op.CHECK, Op.RENEW, Op.RESET, Op.CHARGE):
        other = Batch(op, [b"\0" * 9], [1], slot_ids=[7] if op in (Op.CHECK, Op.RENEW) else [])
        payload = encode(Request(1, 0, 1, 0, False, other))
        forged = urlsafe_b64encode(tokens._code(payload) + payload).decode()
        with pytest.raises(HttpProblem):
            tokens.read(forged)


def test_the_largest_token_is_within_its_bound() -> None:
    limit = Limit.of_ns(2**53 - 1, 2**62, Algorithm.CONCURRENCY)
    slots = Batch(
        *(Op.REFUND, [bytes(128)] * 32, [2**53] * 32),
        limits=[limit],
        which=[1] * 32,
        slot_ids=[2**64 - 1 - row for row in range(32)],
    )

    assert 5900 < len(SlotTokens(CLUSTER).write(slots)) <= MAX_SLOT_TOKEN


async def test_slots_need_the_scope_check(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    digest = token_digest(SECRET).hex()
    path.write_text(
        f'[tokens.app]\ndigest = "{digest}"\nscopes = ["check"]\n'
        f'[tokens.looker]\ndigest = "{digest}"\nscopes = ["observe", "refund", "reset"]\n'
    )
    async with api(load_tokens(path)) as gateway:

        async def call(path: str, body: object, name: str = "app") -> int:
            headers = {"Authorization": f"Bearer {name}.{SECRET.hex()}"} if name else {}
            return (await ask(gateway, "POST", path, body, headers)).status

        headers = {"Authorization": f"Bearer app.{SECRET.hex()}"}
        acquired = await ask(gateway, "POST", "/v1/acquire", JOB, headers)
        slots = {"slots": json.loads(acquired.body)["slots"]}
        statuses = [
            await call(path, slots, name)
            for path in ("/v1/renew", "/v1/release")
            for name in ("", "looker", "app")
        ]

    assert statuses == [401, 403, 200] * 2


@pytest.mark.parametrize("path", ["/v1/renew", "/v1/release"])
async def test_without_a_node_slots_are_answered_with_503(path: str) -> None:
    nobody = "ringfence://127.0.0.1:1"
    async with ringfence.connect(nobody, connect_timeout=0.0) as limiter:
        gateway = make_api(limiter, settings_of(cluster=nobody, deadline=0.05))
        slots = {"slots": SlotTokens(nobody).write(slots_of([7]))}
        response = await post(gateway, path, slots)

    assert response.status == 503
    assert (
        "no node answered for these slots in time; repeat the call" in json_of(response)["detail"]
    )
    assert ("Retry-After", "1") in response.headers
