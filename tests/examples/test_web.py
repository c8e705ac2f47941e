"""The examples for web frameworks, each under the real server, over a real node."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import pytest

from node.demo.cluster import DemoCluster, running_cluster
from tests.examples.servers import (
    DJANGO_ASGI,
    DJANGO_WSGI,
    EXAMPLES,
    FLASK,
    HYPERCORN,
    UVICORN,
    Server,
    serving,
)

EVERY = {
    "fastapi-uvicorn": UVICORN,
    "fastapi-hypercorn-trio": HYPERCORN,
    "flask-gunicorn": FLASK,
    "django-gunicorn": DJANGO_WSGI,
    "django-uvicorn": DJANGO_ASGI,
}


@pytest.fixture
def cluster() -> Iterator[DemoCluster]:
    with running_cluster(EXAMPLES / "rules", ["a"]) as cluster:
        yield cluster


async def test_all_frameworks_at_once_admit_exactly_what_one_limit_says(
    cluster: DemoCluster, tmp_path: Path
) -> None:
    seen: Counter[int] = Counter()
    with serving(cluster.url, tmp_path, *EVERY.values()) as addresses:
        async with httpx.AsyncClient(timeout=60) as client, anyio.create_task_group() as tasks:

            async def ask(address: str) -> None:
                seen[(await client.get(f"{address}/")).status_code] += 1

            for number in range(200):
                tasks.start_soon(ask, addresses[number % len(addresses)])

    assert seen == {200: 20, 429: 180}


@pytest.mark.parametrize("server", EVERY.values(), ids=EVERY)
def test_an_example_does_what_its_readme_says(
    server: Server, cluster: DemoCluster, tmp_path: Path
) -> None:
    with serving(cluster.url, tmp_path, server) as [address]:
        answers = [httpx.get(f"{address}/report", timeout=60) for _ in range(6)]
        wrong = [
            httpx.post(f"{address}/login", params={"password": "guess"}, timeout=60).status_code
            for _ in range(4)
        ]
        cluster.kill("a")
        outage = httpx.get(f"{address}/report", timeout=60)

    assert [each.status_code for each in answers] == [200] * 5 + [429]
    refused = answers[-1]
    assert refused.headers["content-type"] == "application/problem+json"
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert refused.headers["ratelimit"].startswith('"5/minute";r=0;t=')
    assert json.loads(refused.content)["violated-policies"] == ["5/minute"]
    assert wrong == [401, 401, 401, 429]
    assert (outage.status_code, outage.headers["ringfence-outage"]) == (200, "allow")


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
