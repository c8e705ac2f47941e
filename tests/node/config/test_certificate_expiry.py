import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.config.access import KeyDir
from node.config.certificate_expiry import Expiry, expiries, log_expiries, warn_daily
from node.config.certificates import load_node_tls
from node.config.key_files import write_keys

NOW = datetime(2030, 5, 1, 12, tzinfo=UTC)


def expiring(days: float) -> list[Expiry]:
    return [Expiry("nodes/a.pem", NOW + timedelta(days=days), "renew it")]


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


@pytest.mark.parametrize(
    ("days", "level", "message"),
    [
        (100, "INFO", "certificate nodes/a.pem expires on 2030-08-09, in 100 days"),
        (30, "INFO", "certificate nodes/a.pem expires on 2030-05-31, in 30 days"),
        (29.5, "WARNING", "certificate nodes/a.pem expires on 2030-05-31, in 29 days; renew it"),
        (0, "WARNING", "certificate nodes/a.pem expires on 2030-05-01, in 0 days; renew it"),
        (
            -0.01,
            "ERROR",
            "certificate nodes/a.pem expired on 2030-05-01 and is refused by peers and clients; "
            "renew it",
        ),
        (
            -1,
            "ERROR",
            "certificate nodes/a.pem expired on 2030-04-30 and is refused by peers and clients; "
            "renew it",
        ),
    ],
)
def test_the_log_states_when_a_certificate_expires(
    caplog: pytest.LogCaptureFixture, days: float, level: str, message: str
) -> None:
    caplog.set_level(logging.INFO, "ringfence.node")

    log_expiries(expiring(days), NOW)

    assert logged(caplog) == [(level, message)]


async def test_a_certificate_that_expires_within_30_days_is_logged_daily(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ringfence.node")
    started_at = trio.current_time()

    def now() -> datetime:
        return NOW + timedelta(seconds=trio.current_time() - started_at)

    with trio.move_on_after(4.5 * 86_400):
        await warn_daily(lambda: expiring(32.5), now)

    assert [message.partition(", in ")[2] for _, message in logged(caplog)] == [
        "29 days; renew it",
        "28 days; renew it",
    ]


def test_expiries_include_the_nodes_own_certificate_and_its_authority(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check"], 20, ["a"])
    keys = KeyDir(tmp_path / "keys")
    now = datetime.now(UTC)
    client, server = load_node_tls(keys, "a", now)

    own, authority = expiries(keys, "a", client, server)

    assert (own.file, authority.file) == ("nodes/a.pem", "ca.pem")
    assert (own.at - now).days == 19
    assert (authority.at - now).days == 3649
    assert "ringfence keys renew" in own.remedy
    assert "ringfence keys new" in authority.remedy
