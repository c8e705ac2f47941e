"""HTML page of a refusal in a real browser."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

import ringfence.blocking
from ringfence.integrations.wsgi import RateLimitMiddleware
from tests.programs import require
from tests.ringfence.integrations.wsgi.test_wsgi import hello


class Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited name
        pass


@pytest.fixture
def chromium() -> str:
    return require("chromium")


@pytest.fixture
def address() -> Iterator[str]:
    with ringfence.blocking.local({"domain": "api", "descriptors": [{"key": "x"}]}) as limiter:
        app = RateLimitMiddleware(hello, limiter, limit="0/hour")
        with make_server("127.0.0.1", 0, app, handler_class=Silent) as server:
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            yield f"http://127.0.0.1:{server.server_port}/"
            server.shutdown()
            thread.join()


def test_chromium_shows_the_page_of_a_refusal(chromium: str, address: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [
            chromium,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path}",
            "--dump-dom",
            address,
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )

    assert "<h1>Too many requests</h1>" in result.stdout
    assert "<title>Too many requests</title>" in result.stdout
