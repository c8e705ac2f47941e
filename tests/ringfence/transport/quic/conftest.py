from collections.abc import Iterator

import pytest

from tests.ringfence.transport.quic.simulated_network import Network


@pytest.fixture(params=[True, False], ids=["fast_path", "general_path"])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    made = Network(use_fast_path=request.param)
    yield made
    assert made.bugs == []
