"""The examples for web frameworks, each under the real server, over a real node."""

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

_Answers = TypeVar("_Answers")

EVERY = {
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
"""What the limits of the examples' views belong to."""


@dataclass
class Site:
    """All servers, and the one node they ask."""

    cluster: DemoCluster
    addresses: dict[str, str]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("servers")
    with (
        real_cluster(EXAMPLES / "rules", ["a"], "check,reset") as cluster,
        serving(cluster.url, home, *EVERY.values()) as addresses,
    ):
        yield Site(cluster, dict(zip(EVERY, addresses, strict=True)))


def forget_all(cluster: DemoCluster) -> None:
    """As if nobody had asked the servers anything."""
    client = ("client", "127.0.0.1")
    with ringfence.blocking.connect(cluster.url, raise_on_outage=True) as limiter:
        limiter.reset("web", dict([client]))
        for report, login in VIEWS.values():
            limiter.reset_limit("5/minute", f"{report} 5/minute", *client)
            limiter.reset_limit("3/minute", f"{login} 3/minute", *client)


@pytest.fixture
def site(running: Site) -> Site:
    """The servers, as if nobody had asked them anything."""
    forget_all(running.cluster)
    return running


def within_one_minute(site: Site, ask: Callable[[], _Answers]) -> _Answers:
    """Ask, and once more when a minute turned meanwhile: a sliding window's estimate then gives
    part of what was spent back."""
    while True:
        minute = time() // 60
        answers = ask()
        if time() // 60 == minute:
            return answers
        forget_all(site.cluster)


@pytest.mark.parametrize("name", EVERY)
def test_an_example_does_what_its_readme_says(name: str, site: Site) -> None:
    address = site.addresses[name]
    guess = {"password": "guess"}

    answers = within_one_minute(
        site, lambda: [httpx.get(f"{address}/report", timeout=60) for _ in range(6)]
    )
    wrong = within_one_minute(
        site,
        lambda: [
            httpx.post(f"{address}/login", params=guess, timeout=60).status_code for _ in range(4)
        ],
    )

    assert [each.status_code for each in answers] == [200] * 5 + [429]
    refused = answers[-1]
    assert refused.headers["content-type"] == "application/problem+json"
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert refused.headers["ratelimit"].startswith('"5/minute";r=0;t=')
    assert json.loads(refused.content)["violated-policies"] == ["5/minute"]
    assert wrong == [401, 401, 401, 429]


async def test_all_frameworks_at_once_admit_exactly_what_one_limit_says(site: Site) -> None:
    addresses = list(site.addresses.values())
    seen: Counter[int] = Counter()

    async def ask(client: httpx.AsyncClient, address: str) -> None:
        seen[(await client.get(f"{address}/")).status_code] += 1

    async with httpx.AsyncClient(timeout=60) as client, anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(ask, client, addresses[number % len(addresses)])

    assert seen == {200: 20, 429: 180}


def test_no_framework_goes_down_with_the_node(site: Site) -> None:
    site.cluster.kill("a")

    for address in site.addresses.values():
        answer = httpx.get(f"{address}/report", timeout=60)
        assert (answer.status_code, answer.headers["ringfence-outage"]) == (200, "allow")


def test_the_django_example_passes_its_check() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=EXAMPLES / "django",
        env={"PYTHONPATH": str(EXAMPLES.parent), "RINGFENCE_URL": "ringfence://127.0.0.1:7101"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout
