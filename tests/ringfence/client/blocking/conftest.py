"""Fixture that makes tests count the background threads of their own limiters only."""

import threading

import pytest

from tests.ringfence.client.blocking import background


@pytest.fixture(autouse=True)
def earlier_threads(monkeypatch):
    monkeypatch.setattr(background, "EARLIER", frozenset(threading.enumerate()))
