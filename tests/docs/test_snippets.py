"""Snippets of the pages that need a cluster, run against a cluster with their rules.

The cluster has `examples/rules`, as README's three nodes have, but lends no units. A client on a
busy machine returns a lease too late. The owner then charges the whole lease, so the client is
limited too early. In the snippets, only addresses are replaced.
"""

import ast
import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CoroutineType
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from flask import Flask

import ringfence
import ringfence.blocking
from ringfence import Source
from tests.docs.test_examples import ROOT, every
from tests.docs.until_limited import until_limited
from tests.node.real_cluster import real_cluster

_ADDRESS = re.compile(r"ringfence://(?:TOKEN@10\.0|127\.0\.0\.1)[^\"\s]*")
_PAGES = {
    "README.md": ["ringfence.connect(", "FastAPI()", "ringfence.blocking.connect("],
    "celery.md": [
        "app = Celery(",
        "def fetch(",
        "def mail(",
        "def request_report(",
        "def fetch_in_turn(",
        "def report(",
        "def close_limiter(",
        "# test_tasks.py",
    ],
    "fastapi.md": ["TOKEN@10.0.0.1"],
    "denial-cache.md": ["denied again"],
    "django.md": ["# settings.py", "# views.py", "RingfenceThrottle"],
    "limits-storage.md": ["in_memory_fallback"],
    "migration.md": ["# ratelimit_views.py"],
    "quick-start.md": ["ringfence://127.0.0.1", "ringfence://TOKEN"],
    "testing-your-app.md": ["# conftest.py", "# test_shop.py"],
}
"""By page, a text that identifies each of its snippets."""


def snippet(page: str, mark: str, url: str = "ringfence://127.0.0.1:7101") -> str:
    """Return the snippet of a page that contains `mark`, with the cluster address `url`."""
    assert mark in _PAGES[page]
    [found] = [
        block.body
        for block in every("python no-run")
        if block.page.name == page and mark in block.body
    ]
    return _ADDRESS.sub(lambda _: url, found)


def run(code: str, **names: Any) -> dict[str, Any]:
    """Run a snippet, also with top-level await; return its names."""
    compiled = compile(code, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def body() -> None:
        result = eval(compiled, names)
        if isinstance(result, CoroutineType):
            await result

    asyncio.run(body())
    return names


def test_every_snippet_that_needs_a_cluster_is_run_here() -> None:
    snippets = [(block.page.name, block.body) for block in every("python no-run")]

    assert len(snippets) == sum(map(len, _PAGES.values()))
    for page, body in snippets:
        assert [mark in body for mark in _PAGES[page]].count(True) == 1


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `examples/rules` without leases."""
    folder = tmp_path_factory.mktemp("rules")
    for path in (ROOT / "examples" / "rules").glob("*.yaml"):
        text = path.read_text("utf-8")
        (folder / path.name).write_text(text.replace("defaults:", "defaults:\n  leases: false"))
    assert "leases: false" in (folder / "api.yaml").read_text("utf-8")
    return folder


@pytest.fixture(scope="module")
def url(rules: Path) -> Iterator[str]:
    with real_cluster(rules, ["a"], "check,reset") as cluster:
        yield cluster.url


@pytest.fixture
def spend(url: str) -> Iterator[ringfence.blocking.BlockingLimiter]:
    """Reset all counters and return a limiter that spends units before a snippet runs."""
    with ringfence.blocking.connect(url, raise_on_outage=True) as limiter:
        for client in ("203.0.113.7", "testclient", "127.0.0.1", "unknown", "ip:127.0.0.1"):
            limiter.reset("api", {"client": client})
            limiter.reset("log", {"client": client})
        yield limiter


@pytest.mark.parametrize(
    ("page", "mark"),
    [
        ("README.md", "ringfence.connect("),
        ("README.md", "ringfence.blocking.connect("),
        ("quick-start.md", "ringfence://127.0.0.1"),
    ],
)
def test_a_client_of_the_pages_is_allowed_and_then_denied(
    page: str, mark: str, url: str, spend: ringfence.blocking.BlockingLimiter
) -> None:
    code = snippet(page, mark, url)

    assert run(code, ringfence=ringfence)["decision"].allowed
    for _ in range(5):  # A unit may become available before the snippet runs.
        while spend.check("log", {"client": "203.0.113.7"}):
            pass
        denied = run(code, ringfence=ringfence)["decision"]
        if not denied:
            break

    assert (denied.allowed, denied.source) == (False, Source.OWNER)


def test_the_quick_start_address_with_a_token_connects(url: str) -> None:
    code = snippet("quick-start.md", "ringfence://TOKEN", url)

    assert run(code, ringfence=ringfence)["limiter"].rules.knows_domain("api")


async def test_the_second_denial_comes_from_the_cache(
    url: str, spend: ringfence.blocking.BlockingLimiter
) -> None:
    lines = snippet("denial-cache.md", "denied again").splitlines()
    bodies = [line.partition("await ")[2].partition("  #")[0] for line in lines]

    for _ in range(5):  # A unit may become available before the snippet runs.
        while spend.check("api", {"client": "203.0.113.7"}):
            pass
        async with ringfence.connect(url) as limiter:
            sources = [(await eval(body, {"limiter": limiter})).source for body in bodies]
        if sources[1] is Source.CACHE:
            break

    assert sources == [Source.OWNER, Source.CACHE]


def fastapi_of(code: str) -> FastAPI:
    app: FastAPI = run(code)["app"]
    return app


def test_the_fastapi_application_of_readme_limits_requests(
    url: str, spend: ringfence.blocking.BlockingLimiter, caplog: pytest.LogCaptureFixture
) -> None:
    with TestClient(fastapi_of(snippet("README.md", "FastAPI()", url))) as client:
        reports = until_limited(lambda: client.get("/report").status_code)
        first = client.get("/")
        others = until_limited(lambda: client.get("/").status_code)

    assert reports[:5] == [200] * 5
    assert first.headers["ratelimit-policy"] == '"client";q=300;w=60'
    assert len([*reports, first, *others]) >= 300
    assert not [text for text in caplog.messages if "limited" in text]


@pytest.mark.parametrize(
    ("change", "report"),
    [
        (('domain="api"', 'domain="apii"'), r"'apii'.*did you mean 'api'\?.*for api, log, web"),
        (('domain="api"', 'domain="api", keys="ip"'), r"key 'ip'.*rules are for client, path"),
    ],
)
def test_the_fastapi_application_of_readme_warns_about_unmatched_rules(
    url: str, change: tuple[str, str], report: str, caplog: pytest.LogCaptureFixture
) -> None:
    code = snippet("README.md", "FastAPI()", url).replace(*change)

    with TestClient(fastapi_of(code)) as client:
        assert re.search(report, caplog.text)
        assert client.get("/").headers.get("ratelimit") is None


def test_the_limits_of_the_fastapi_page_match_their_rules(
    url: str, spend: ringfence.blocking.BlockingLimiter
) -> None:
    from ringfence.integrations.fastapi import RateLimits

    names = run(snippet("fastapi.md", "TOKEN@10.0.0.1", url), RateLimits=RateLimits)
    app = FastAPI()
    names["limits"].install(app)

    with TestClient(app) as client:
        assert client.get("/").headers["ratelimit-policy"] == '"client";q=300;w=60'


@pytest.mark.parametrize("domain", ["api", "apii"])
def test_the_flask_settings_of_the_page_limit_or_warn(
    domain: str,
    url: str,
    spend: ringfence.blocking.BlockingLimiter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from ringfence.integrations.flask import RateLimits

    app = Flask("shop")
    app.config |= {"RINGFENCE_URL": url, "RINGFENCE_DOMAIN": domain}
    RateLimits(app)

    def status() -> int:
        return app.test_client().get("/").status_code

    statuses = until_limited(status) if domain == "api" else [status() for _ in range(320)]
    app.extensions["ringfence"].limits.limiter.close()

    assert set(statuses[:300]) == {404}
    assert set(statuses) == ({404, 429} if domain == "api" else {404})
    warned = re.search(r"'apii'.*did you mean 'api'\?.*for api, log, web", caplog.text)
    assert bool(warned) == (domain == "apii")


_DJANGO = """
import sys, types
import logging; logging.basicConfig(level="WARNING")
space = {}
exec(open("settings_of_the_page.py").read(), space)
from django.conf import settings
ours = {name: value for name, value in space.items() if name.isupper()}
for name in ("INSTALLED_APPS", "MIDDLEWARE"):
    ours[name] = [each for each in ours[name] if each is not ...]
ours["INSTALLED_APPS"] += ["django.contrib.auth", "django.contrib.contenttypes",
                           "django.contrib.sessions"]
ours["MIDDLEWARE"].insert(0, "django.contrib.sessions.middleware.SessionMiddleware")
ours["RINGFENCE"] |= eval(sys.argv[1])
for name in [name for name, value in ours["RINGFENCE"].items() if value is None]:
    del ours["RINGFENCE"][name]
settings.configure(ROOT_URLCONF="urls", ALLOWED_HOSTS=["*"], SECRET_KEY="tests",
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies", **ours)
import django; django.setup()
from django.http import HttpResponse
from django.urls import path
views = {}
exec(open("views_of_the_page.py").read(), views)
exec(open("rest_of_the_page.py").read(), views)
urls = types.ModuleType("urls")
class Search(views["SearchView"]):
    authentication_classes = []
    def get(self, request):
        return HttpResponse("found")
urls.urlpatterns = [path("search", Search.as_view()), path("free", lambda request: HttpResponse())]
sys.modules["urls"] = urls
from django.test import Client
from tests.docs.until_limited import until_limited
client = Client()
for page, count in (("/free", 320), ("/search", 12)):
    def status():
        return client.get(page).status_code
    print(until_limited(status) if page == sys.argv[2] else [status() for _ in range(count)])
"""


@pytest.mark.parametrize("domain", [None, "api", "apii"])
def test_the_django_settings_of_the_page_limit_or_warn(
    domain: str | None, url: str, spend: ringfence.blocking.BlockingLimiter, tmp_path: Path
) -> None:
    for name, mark in (
        ("settings", "# settings.py"),
        ("views", "# views.py"),
        ("rest", "RingfenceThrottle"),
    ):
        code = snippet("django.md", mark, url)
        (tmp_path / f"{name}_of_the_page.py").write_text(code, "utf-8")
    changes: dict[str, str | None] = {} if domain is None else {"DOMAIN": domain, "LIMIT": None}

    limited = {None: "/search", "api": "/free", "apii": ""}[domain]

    completed = run_python("-c", _DJANGO, repr(changes), limited, cwd=tmp_path)

    free, search = [eval(line) for line in completed.stdout.splitlines()]
    assert set(free[:300]) == {200}
    assert (429 in free) == (domain == "api")
    if domain is None:
        assert (search[:5], search[-1]) == ([200] * 5, 429)
    warned = re.search(r"'apii'.*did you mean 'api'\?.*for api, log, web", completed.stderr)
    assert bool(warned) == (domain == "apii"), completed.stderr


_DJANGO_MIGRATION = """
import sys, types
from django.conf import settings
settings.configure(ROOT_URLCONF="urls", ALLOWED_HOSTS=["*"], SECRET_KEY="tests",
    MIDDLEWARE=["ringfence.integrations.django.RateLimitMiddleware"],
    RINGFENCE={"URL": sys.argv[1], "KEYS": "ip"})
import django; django.setup()
from django.urls import path
import ratelimit_views
urls = types.ModuleType("urls")
urls.urlpatterns = [path("report", ratelimit_views.report)]
sys.modules["urls"] = urls
from django.test import Client
for number in range(20):
    client = Client(REMOTE_ADDR=f"192.0.2.{number}")
    statuses = [client.get("/report").status_code for _ in range(4)]
    print(statuses)
    if 429 in statuses:
        break  # Otherwise a new minute began between two requests, or the node was too slow.
"""


def test_the_migrated_django_view_is_limited(url: str, tmp_path: Path) -> None:
    code = snippet("migration.md", "# ratelimit_views.py", url)
    (tmp_path / "ratelimit_views.py").write_text(code, "utf-8")

    completed = run_python("-c", _DJANGO_MIGRATION, url, cwd=tmp_path)

    *earlier, last = completed.stdout.splitlines()
    assert last == "[200, 200, 200, 429]"
    assert set(earlier) <= {"[200, 200, 200, 200]"}


def run_python(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment: Mapping[str, str] = os.environ | {"PYTHONPATH": str(ROOT)}
    completed = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed


def test_flask_limiter_of_the_page_counts_in_the_cluster(url: str) -> None:
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address

    import ringfence.integrations.limits

    assert ringfence.integrations.limits is not None
    app = Flask("shop-of-the-page")
    names = run(
        snippet("limits-storage.md", "in_memory_fallback", url),
        Limiter=Limiter,
        get_remote_address=get_remote_address,
        app=app,
    )

    @app.get("/")
    @names["limiter"].limit("2/minute")
    def index() -> str:
        return "hello"

    client = app.test_client()
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
    names["limiter"].storage.close()


def test_the_tests_of_the_testing_page_pass(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "shop.yaml").write_text(
        "domain: shop\ndescriptors:\n"
        "  - {key: client, rate_limit: {unit: minute, requests_per_unit: 3}}\n",
        "utf-8",
    )
    conftest = snippet("testing-your-app.md", "# conftest.py")
    conftest += """

@pytest.fixture
def client(ringfence_cluster):
    from flask import Flask
    from ringfence.integrations.flask import RateLimits

    app = Flask("shop")
    app.post("/order")(lambda: ("ordered", 201))
    RateLimits(app, domain="shop", strict=True)
    return app.test_client()
"""
    (tmp_path / "conftest.py").write_text(conftest, "utf-8")
    test = snippet("testing-your-app.md", "# test_shop.py")
    (tmp_path / "test_shop.py").write_text(test, "utf-8")

    completed = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)

    assert "1 passed" in completed.stdout


_CELERY = """

@pytest.mark.parametrize("ask", [tasks.request_report, tasks.fetch_in_turn, tasks.fetch.delay])
def test_the_tasks_that_check_a_limit_run(eager, ask):
    assert ask("ann").get().endswith("ann")


def test_the_eleventh_report_of_an_hour_is_refused(eager):
    for _ in range(10):
        tasks.limiter.check_limit("10/hour", "reports", "ann")

    assert tasks.request_report("ann").startswith("try again in ")


def test_a_task_without_a_slot_is_retried(eager):
    tasks.report.max_retries = 0
    with tasks.limiter.hold_limit("4 concurrent ttl 30s", "reports", cost=4):
        with pytest.raises(tasks.report.MaxRetriesExceededError):
            tasks.report.apply(("ann",)).get()


def test_the_end_of_a_worker_process_closes_the_limiter(eager):
    tasks.worker_process_shutdown.send(None)

    with pytest.raises(tasks.ringfence.ConfigError):
        tasks.limiter.check_limit("2/s", "fetch")
"""


def test_the_tasks_and_tests_of_the_celery_page_work(tmp_path: Path) -> None:
    *tasks, test = [snippet("celery.md", mark) for mark in _PAGES["celery.md"]]
    module = "\n\n".join(tasks)
    (tmp_path / "tasks.py").write_text(module.replace("time.sleep(1)", "pass"), "utf-8")
    (tmp_path / "test_tasks.py").write_text(test + _CELERY, "utf-8")

    completed = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path)

    assert "7 passed" in completed.stdout
