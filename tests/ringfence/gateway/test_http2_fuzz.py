"""Short run of the fuzz target for HTTP/2 frames."""

import gc
from collections.abc import Iterator
from random import Random

import pytest

from tests.fuzz import http2_frames


@pytest.fixture
def _without_collections() -> Iterator[None]:
    """Collect no garbage, because a collection of all objects of the tests may take 70 ms."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_without_collections")
@pytest.mark.parametrize("seed", range(10))
def test_random_frames_cause_no_exception_delay_or_unbounded_memory(seed: int) -> None:
    for history in range(20):
        assert http2_frames.run(Random(f"{seed}:{history}"))
