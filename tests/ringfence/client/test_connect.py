import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import SystemRandom

import anyio
import pytest
import trio

import ringfence
from node.config.access import load_access
from node.config.settings import NodeSettings
from node.node import Node
from ringfence.errors import ConfigError, PeerUnavailable, UntrustedPeer
from ringfence.limiter import Limit
from ringfence.peering.clock import SystemClock
from ringfence.rules import Descriptor, parse_limit
from ringfence.rules.loading.mapping import load_mapping
from ringfence.transport.tls.certificate_authority import issue, new_authority, self_signed
from ringfence.transport.tls.certificates import ClientTls, ServerTls
from ringfence.transport.udp.udp_trio import TrioUdp
from ringfence.wire import Source

ROOT = Path(__file__).parents[3]
RULES = {
    "domain": "d",
    "descriptors": [
        {"key": "user", "rate_limit": {"requests_per_unit": 5, "unit": "hour"}},
        {"key": "job", "rate_limit": {"requests_per_unit": 1, "unit": "hour"}},
        {
            "key": "hot",
            "rate_limit": {
                "requests_per_unit": 10_000,
                "unit": "year",
                "algorithm": "fixed_window",
            },
        },
    ],
}
TOKEN = "web." + "ab" * 16


@pytest.fixture(scope="module")
def url():
    """Run a real node in another thread; return its address."""
    stop: Future[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = Future()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    thread = threading.Thread(target=trio.run, args=(serve, port, stop))
    thread.start()
    token, scope = stop.result(10)
    yield f"ringfence://127.0.0.1:{port}"
    token.run_sync_soon(scope.cancel)
    thread.join()


async def serve(port, started):
    at = f"127.0.0.1:{port}"
    settings = NodeSettings(name="a", listen=at)
    rules = load_mapping(RULES).rules
    node = Node(settings, load_access(None), rules, clock=SystemClock(), random=SystemRandom())
    transport = TrioUdp(
        settings.listen_at,
        on_bug=raise_,
        client=ClientTls(verify=False),
        server=self_signed(datetime.now(UTC)),
        accept=node.accept,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(transport.run)
        await nursery.start(node.run, transport)
        started.set_result((trio.lowlevel.current_trio_token(), nursery.cancel_scope))
        await trio.sleep_forever()


def raise_(error):
    raise error


BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])
_AT_ONCE = 30
"""Bound in seconds for immediate results on a busy machine, below the connection time-out."""


# -- over a real connection ------------------------------------------------------------------------


@BACKENDS
def test_a_client_connects_checks_and_closes_under_trio_and_asyncio(url, backend):
    async def run():
        async with ringfence.connect(url, raise_on_outage=True) as limiter:
            first = await limiter.check("d", {"user": backend})
            with anyio.fail_after(30):
                rest = await limiter.check_many("d", [{"user": backend}] * 5, timeout=20)
        assert [first.remaining, *(decision.remaining for decision in rest)] == [4, 3, 2, 1, 0, 0]
        assert not rest[-1]
        assert first.source is Source.OWNER

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_place_is_held_under_trio_and_asyncio(url, backend):
    async def run():
        limit = Limit(1, 1000, ringfence.Algorithm.CONCURRENCY)
        async with ringfence.connect(url, raise_on_outage=True) as limiter:
            held = await limiter.check_limit(limit, backend)
            full = await limiter.check_limit(limit, backend)
            await limiter.release(held)
            free = await limiter.check_limit(limit, backend, cost=0)
        assert [held.allowed, full.allowed, free.allowed] == [True, False, True]

    anyio.run(run, backend=backend)


@BACKENDS
@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_of_the_block_is_raised_unchanged(url, backend, error):
    async def run():
        with pytest.raises(type(error)) as caught:
            async with ringfence.connect(url):
                raise error
        assert caught.value is error

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_block_that_is_cancelled_ends_quietly(url, backend):
    async def run():
        with anyio.move_on_after(0.2) as scope:
            async with ringfence.connect(url):
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    anyio.run(run, backend=backend)


@BACKENDS
def test_a_block_that_is_cancelled_releases_its_slots_and_returns_its_leases(url, backend):
    slot, hot = Limit(1, 1000, ringfence.Algorithm.CONCURRENCY), {"hot": backend}

    async def run():
        with anyio.CancelScope() as scope:
            async with ringfence.connect(url, raise_on_outage=True) as limiter:
                for _ in range(60):
                    assert await limiter.check("d", hot)
                    await anyio.lowlevel.checkpoint()
                async with limiter.hold_limit(slot, f"cancelled under {backend}"):
                    scope.cancel()
                    await anyio.sleep_forever()
        async with ringfence.connect(url, raise_on_outage=True, use_leases=False) as limiter:
            assert await limiter.check_limit(slot, f"cancelled under {backend}")
            assert (await limiter.peek("d", hot)).remaining == 10_000 - 60

    anyio.run(run, backend=backend)


async def test_the_address_may_come_from_the_environment(url, monkeypatch):
    monkeypatch.setenv("RINGFENCE_URL", url)

    async with ringfence.connect(raise_on_outage=True) as limiter:
        assert limiter.rules.domains == ("d",)


async def test_a_limiter_that_outlives_its_block_is_closed(url):
    async with ringfence.connect(url) as limiter:
        pass

    with pytest.raises(ConfigError, match="limiter must be open"):
        await limiter.check("d", {"user": "later"})


async def test_an_unknown_data_center_is_an_error_at_once(url):
    with (
        trio.fail_after(_AT_ONCE),
        pytest.raises(ConfigError, match=r"in data center 'zz'.*known are 'dc1'"),
    ):
        async with ringfence.connect(f"{url}?datacenter=zz", connect_timeout=60):
            raise AssertionError


@pytest.mark.parametrize("read", [dict, lambda rules: load_mapping(rules).rules])
async def test_rules_of_the_client_replace_those_of_the_cluster(url, read):
    own = read(RULES | {"domain": f"mine {read}"})
    async with ringfence.connect(url, rules=own, raise_on_outage=True) as limiter:
        assert (await limiter.check(f"mine {read}", {"user": "a"})).remaining == 4
        assert (await limiter.check("d", {"user": "a"})).source is Source.NO_RULE


# -- when there is no cluster ----------------------------------------------------------------------


def no_member():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"ringfence://127.0.0.1:{probe.getsockname()[1]}"


async def test_without_a_cluster_everything_passes(autojump_clock):
    async with ringfence.connect(no_member()) as limiter:
        assert await limiter.check("d", {"user": "a"})
        assert (await limiter.check_limit("1/s", "key")).source is Source.POLICY


@pytest.mark.parametrize(
    ("policy", "passed"),
    [("allow", [True] * 3), ("deny", [False] * 3), ("local", [True, True, False])],
)
async def test_the_address_selects_the_failure_policy(policy, passed, autojump_clock):
    async with ringfence.connect(f"{no_member()}?on_failure={policy}") as limiter:
        unknown = await limiter.check("d", {"user": "a"})
        decisions = [await limiter.check_limit("2/minute", "key") for _ in range(3)]

    assert bool(unknown) == (policy != "deny")  # Without rules, nothing can be counted.
    assert [bool(each) for each in decisions] == passed


async def test_the_policy_of_a_domain_holds_for_limits_in_descriptors(autojump_clock):
    rules = {"domain": "d", "defaults": {"on_failure": "deny"}, "descriptors": [{"key": "user"}]}
    own = Descriptor((("tenant", "a"),), limit=parse_limit("3/hour"))
    async with ringfence.connect(no_member(), rules=rules) as limiter:
        assert not await limiter.check("d", [own])
        assert await limiter.check_limit("3/hour", "a")


async def test_without_a_cluster_an_error_is_raised_if_selected(autojump_clock):
    with pytest.raises(PeerUnavailable, match="no node of the cluster answered within 5 s"):
        async with ringfence.connect(no_member(), raise_on_outage=True):
            raise AssertionError


async def test_an_address_may_set_the_answer_timeout(autojump_clock):
    started = trio.current_time()
    with pytest.raises(PeerUnavailable, match="within 20 s"):
        async with ringfence.connect(no_member(), raise_on_outage=True, connect_timeout=20):
            raise AssertionError
    assert trio.current_time() == pytest.approx(started + 20, abs=1)


# -- certificates ----------------------------------------------------------------------------------


@asynccontextmanager
async def secured(server):
    """Run a listener that sends its certificate and accepts no connection."""
    transport = TrioUdp(("127.0.0.1", 0), on_bug=raise_, server=server, accept=never)
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(transport.run)
        yield f"ringfence://{TOKEN}@{host}:{port}"
        nursery.cancel_scope.cancel()


def never(connection):
    raise AssertionError


def signed(now, days, tmp_path, name="ca.pem"):
    ca, key = new_authority(now, 30)
    (tmp_path / name).write_bytes(ca)
    return ServerTls(*issue(ca, key, [], [], now, days))


async def test_a_certificate_that_the_ca_did_not_sign_is_a_wrong_setting(tmp_path):
    now = datetime.now(UTC)
    signed(now, 30, tmp_path)
    async with secured(signed(now, 30, tmp_path, "other.pem")) as url:
        with (
            trio.fail_after(_AT_ONCE),
            pytest.raises(UntrustedPeer, match=r"^the CA given does not sign"),
        ):
            async with ringfence.connect(f"{url}?ca={tmp_path}/ca.pem", connect_timeout=60):
                raise AssertionError


async def test_a_certificate_of_another_name_is_a_wrong_setting(tmp_path):
    async with secured(signed(datetime.now(UTC), 30, tmp_path)) as url:
        named = f"{url}?ca={tmp_path}/ca.pem&server_name=limits.example"
        with trio.fail_after(_AT_ONCE), pytest.raises(UntrustedPeer) as caught:
            async with ringfence.connect(named, connect_timeout=60):
                raise AssertionError

    assert str(caught.value).endswith("not name 'limits.example', but node.ringfence.internal")


async def test_an_expired_certificate_is_an_outage(tmp_path):
    past = datetime.now(UTC) - timedelta(days=9)
    async with secured(signed(past, 8, tmp_path)) as url:
        trusting = f"{url}?ca={tmp_path}/ca.pem"
        with trio.fail_after(_AT_ONCE):
            async with ringfence.connect(trusting, connect_timeout=60) as limiter:
                assert (await limiter.check("d", {"user": "a"})).source is Source.POLICY
            with pytest.raises(PeerUnavailable, match=r"^the certificate of .* has expired"):
                async with ringfence.connect(trusting, raise_on_outage=True, connect_timeout=60):
                    raise AssertionError


# -- wrong addresses -------------------------------------------------------------------------------


async def refusal_of(url):
    with pytest.raises(ConfigError) as caught:
        async with ringfence.connect(url):
            raise AssertionError
    return str(caught.value)


async def test_an_address_must_be_an_argument_or_in_the_environment(monkeypatch):
    monkeypatch.delenv("RINGFENCE_URL", raising=False)

    assert "set RINGFENCE_URL to ringfence://TOKEN@HOST:PORT?ca=FILE" in await refusal_of(None)


async def test_arguments_of_a_wrong_type_are_errors(tmp_path):
    assert "must be text, got 5" in await refusal_of(5)
    for wait in (-1, "5", float("nan")):
        with pytest.raises(ConfigError, match=r"connect_timeout must be a duration"):
            async with ringfence.connect("ringfence://127.0.0.1:1", connect_timeout=wait):
                raise AssertionError
    for opened in (ringfence.connect("ringfence://127.0.0.1:1", rules=5), ringfence.local(5)):
        with pytest.raises(
            ConfigError, match="must be a file or directory, a mapping or a RuleSet"
        ):
            async with opened:
                raise AssertionError


async def test_empty_text_is_not_the_working_directory_as_rules(tmp_path, monkeypatch):
    (tmp_path / "rules.yaml").write_text("domain: d", "utf-8")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="or a RuleSet, got ''; give one"):
        async with ringfence.local(""):
            raise AssertionError
    with (
        pytest.raises(ConfigError, match="or a RuleSet, got ''; give one"),
        ringfence.blocking.local(""),
    ):
        raise AssertionError
    async with ringfence.local(".") as limiter:
        assert limiter.rules.knows_domain("d")


async def test_a_wrong_address_is_an_error():
    assert "must begin with ringfence://" in await refusal_of("http://a:1")


@pytest.mark.parametrize("host", ["10.0.0.1", "node.example", "[2001:db8::1]"])
async def test_beyond_loopback_a_ca_is_needed(host):
    message = await refusal_of(f"ringfence://{TOKEN}@127.0.0.1:1,{host}:7101")

    assert "is beyond loopback, so its certificate must be checked" in message
    assert "ringfence keys new" in message
    assert TOKEN not in message


async def test_a_missing_ca_file_is_an_error(tmp_path):
    missing = tmp_path / "ca.pem"

    assert f"cannot read the CA certificate {missing}" in await refusal_of(
        f"ringfence://{TOKEN}@node.example:7101?ca={missing}"
    )


async def test_a_ca_file_without_a_certificate_is_an_error(tmp_path):
    empty = tmp_path / "ca.pem"
    empty.write_text("nothing", "utf-8")

    assert "holds no certificate in PEM form" in await refusal_of(
        f"ringfence://{TOKEN}@node.example:7101?ca={empty}"
    )


# -- in one process --------------------------------------------------------------------------------


@BACKENDS
def test_local_takes_a_mapping_a_rule_set_or_a_path(backend, tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text(
        "domain: d\ndescriptors:\n- key: user\n  rate_limit: {requests_per_unit: 5, unit: hour}\n",
        "utf-8",
    )

    async def run():
        for rules in (RULES, load_mapping(RULES).rules, file, str(file), tmp_path):
            async with ringfence.local(rules) as limiter:
                assert (await limiter.check("d", {"user": "a"})).remaining == 4

    anyio.run(run, backend=backend)


async def test_a_missing_rule_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        async with ringfence.local(tmp_path / "missing.yaml"):
            raise AssertionError


async def test_local_counters_are_bounded():
    async with ringfence.local(RULES, max_keys=10) as limiter:
        for number in range(100):
            await limiter.check("d", {"user": str(number)}, cost=5)
        again = await limiter.check_many("d", [{"user": str(number)} for number in range(100)], 5)

    assert sum(not decision for decision in again) <= 10


def numbers_of(decision):
    return decision.allowed, decision.limit, decision.remaining, decision.source


async def test_check_now_decides_as_check_does_in_a_process_without_nodes():
    async with ringfence.local(RULES) as limiter, ringfence.local(RULES) as other:
        for cost in (1, 2, 3, 1, 9, 1):
            awaited = await other.check("d", {"user": "a"}, cost)
            decision = limiter.check_now("d", {"user": "a"}, cost)

            assert decision is not None
            assert numbers_of(decision) == numbers_of(awaited)
            assert (decision.retry_after is None) == (awaited.retry_after is None)
            assert decision.is_permanent == awaited.is_permanent
        assert not await limiter.check("d", {"user": "a"})
        assert limiter.check_now("d", {"nobody": "knows"}) is None
        assert limiter.check_now("d", [{"user": "b"}, {"job": "b"}]) is None
        assert (await limiter.peek("d", {"user": "b"})).remaining == 5


def test_a_blocking_local_limiter_decides_in_the_thread_of_its_caller():
    with ringfence.blocking.local(RULES) as limiter:
        assert [limiter.check("d", {"user": "a"}).remaining for _ in range(5)] == [4, 3, 2, 1, 0]
        denied = limiter.check("d", {"user": "a"})
        assert (denied.allowed, denied.source) == (False, Source.OWNER)
        assert limiter.check("d", {"nobody": "knows"}).allowed
        assert limiter.check("d", [{"user": "b"}, {"job": "b"}]).remaining == 0
        with pytest.raises(ConfigError, match="cost"):
            limiter.check("d", {"user": "b"}, -1)
    with pytest.raises(ConfigError):
        limiter.check("d", {"user": "a"})


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


WITHOUT_YAML = """
import sys
sys.modules["yaml"] = None
import ringfence, trio

async def run():
    async with ringfence.local({"domain": "d", "descriptors": []}):
        print("mapping works")
    try:
        async with ringfence.local("rules.yaml"):
            pass
    except ringfence.ConfigError as error:
        print(error)

trio.run(run)
"""


def test_the_error_for_a_file_without_pyyaml_states_how_to_install_it():
    out = run_python(WITHOUT_YAML).splitlines()

    assert out == [
        "mapping works",
        "reading rule files needs PyYAML; install it with the extra of nodes: pip install "
        "'.[node]' in a checkout, or 'ringfence[node]' where it is published",
    ]


HEAVY = {
    "yaml", "click", "rich", "node", "gossip", "simulations", "benchmarks", "pytest",
    "ringfence.rules.loading.yaml_files", "ringfence.rules.report", "ringfence.transport.memory",
    "ringfence.transport.tls.certificate_authority",
}  # fmt: skip


def test_importing_ringfence_imports_no_module_that_only_nodes_and_tools_need():
    program = "import sys\nfrom ringfence import *\nprint(*sys.modules)"
    modules = set(run_python(program).split())

    assert modules.isdisjoint(HEAVY)


def test_all_public_names_exist():
    assert all(hasattr(ringfence, name) for name in ringfence.__all__)
    assert set(ringfence.__all__) <= set(dir(ringfence))
    with pytest.raises(AttributeError, match="module 'ringfence' has no attribute 'conect'"):
        ringfence.conect  # noqa: B018
    assert len(set(ringfence.__all__)) == len(ringfence.__all__)
