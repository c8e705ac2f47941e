"""Examples of web frameworks, each on its real server, with a real node."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import time
from typing import TypeVar

import anyio
import httpx
import pytest

import ringfence.blocking
from node.demo.cluster import DemoCluster
from tests.examples.servers import (
    DJANGO_ASGI,
    DJANGO_WSGI,
    EXAMPLES,
    FLASK,
    HYPERCORN,
    UVICORN,
    serving,
)
from tests.node.real_cluster import real_cluster

_Responses = TypeVar("_Responses")

SERVERS = {
    "fastapi-uvicorn": UVICORN,
    "fastapi-hypercorn-trio": HYPERCORN,
    "flask-gunicorn": FLASK,
    "django-gunicorn": DJANGO_WSGI,
    "django-uvicorn": DJANGO_ASGI,
}
VIEWS = {
    "fastapi": ("GET /report", "POST /login"),
    "flask": ("report", "login"),
    "django": ("shop.urls.report", "shop.urls.login"),
}
"""Names of the limited views, as each framework names them in the keys of its limits."""


@dataclass
class Site:
    """All servers, and the one node that decides their checks."""

    cluster: DemoCluster
    addresses: dict[str, str]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("servers")
    with (
        real_cluster(EXAMPLES / "rules", ["a"], "check,reset") as cluster,
        serving(cluster.url, home, *SERVERS.values()) as addresses,
    ):
        yield Site(cluster, dict(zip(SERVERS, addresses, strict=True)))


def reset_counters(cluster: DemoCluster) -> None:
    """Reset the counters of all servers."""
    client = ("client", "127.0.0.1")
    with ringfence.blocking.connect(cluster.url, raise_on_outage=True) as limiter:
        limiter.reset("web", dict([client]))
        for report, login in VIEWS.values():
            limiter.reset_limit("5/minute", f"{report} 5/minute", *client)
            limiter.reset_limit("3/minute", f"{login} 3/minute", *client)


@pytest.fixture
def site(running: Site) -> Site:
    """Return the servers after a reset of their counters."""
    reset_counters(running.cluster)
    return running


def within_one_minute(site: Site, send: Callable[[], _Responses]) -> _Responses:
    """Send the requests; repeat them when a minute ended meanwhile.

    In the next minute, the estimate of a sliding window already releases a part of the units.
    """
    while True:
        minute = time() // 60
        responses = send()
        if time() // 60 == minute:
            return responses
        reset_counters(site.cluster)


@pytest.mark.parametrize("name", SERVERS)
def test_an_example_denies_requests_as_its_readme_states(name: str, site: Site) -> None:
    address = site.addresses[name]
    guess = {"password": "guess"}

    responses = within_one_minute(
        site, lambda: [httpx.get(f"{address}/report", timeout=60) for _ in range(6)]
    )
    login_statuses = within_one_minute(
        site,
        lambda: [
            httpx.post(f"{address}/login", params=guess, timeout=60).status_code for _ in range(4)
        ],
    )

    assert [each.status_code for each in responses] == [200] * 5 + [429]
    denied = responses[-1]
    assert denied.headers["content-type"] == "application/problem+json"
    assert 1 <= int(denied.headers["retry-after"]) <= 120
    assert denied.headers["ratelimit"].startswith('"5/minute";r=0;t=')
    assert json.loads(denied.content)["violated-policies"] == ["5/minute"]
    assert login_statuses == [401, 401, 401, 429]


async def test_all_frameworks_together_admit_exactly_the_amount_of_one_limit(site: Site) -> None:
    addresses = list(site.addresses.values())
    status_counts: Counter[int] = Counter()

    async def send(client: httpx.AsyncClient, address: str) -> None:
        status_counts[(await client.get(f"{address}/")).status_code] += 1

    async with httpx.AsyncClient(timeout=60) as client, anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(send, client, addresses[number % len(addresses)])

    assert status_counts == {200: 20, 429: 180}


def test_every_framework_allows_requests_after_the_node_has_crashed(site: Site) -> None:
    site.cluster.kill("a")

    for address in site.addresses.values():
        answer = httpx.get(f"{address}/report", timeout=60)
        assert (answer.status_code, answer.headers["ringfence-outage"]) == (200, "allow")


def test_the_django_example_passes_the_check_of_django() -> None:
    result = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=EXAMPLES / "django",
        env={"PYTHONPATH": str(EXAMPLES.parent), "RINGFENCE_URL": "ringfence://127.0.0.1:7101"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert "no issues" in result.stdout
