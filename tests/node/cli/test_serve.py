"""Start of a node process: what it logs."""

import logging
import socket
from pathlib import Path

import pytest
import trio

from node.config.settings import NodeSettings
from node.serve import serve

RULES = (
    "domain: api\ndescriptors: [{key: client, rate_limit: {unit: minute, requests_per_unit: 5}}]\n"
)
PORTLESS = "127.0.0.1:0"
WARNING = "joins other nodes without rules, so clients that connect to it are not limited"


async def log_of_start(settings: NodeSettings, caplog: pytest.LogCaptureFixture) -> str:
    """Start a node, and return its log until its port is open."""
    with caplog.at_level(logging.INFO, "ringfence.node"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, settings)
            with trio.fail_after(20):
                while "listens on" not in caplog.text:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    return caplog.text


@pytest.mark.parametrize("has_rules", [False, True])
@pytest.mark.parametrize("joins", [False, True])
async def test_a_node_that_joins_without_rules_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, has_rules: bool, joins: bool
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES, "utf-8")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        seed = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = NodeSettings(
            name="a",
            listen=PORTLESS,
            rules=str(rules) if has_rules else "",
            join=[seed] if joins else [],
        )

        log = await log_of_start(settings, caplog)

    assert (WARNING in log) is (joins and not has_rules)
    assert "node a listens on 127.0.0.1:" in log
    assert f"{int(has_rules)} rules, no keys: loopback only, no admin port" in log
