"""Addresses, tokens and certificates that the command cannot use."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from node.config.key_files import write_keys
from node.demo.cluster import DemoCluster
from ringfence.transport.tls.certificate_authority import new_authority
from tests.invocation import Run, refused


def test_the_error_for_a_missing_address_explains_how_to_give_one(run: Run) -> None:
    assert "no cluster address: pass --cluster" in refused(run("check", "api", "client=x"))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:7101", "must begin with ringfence://"),
        ("ringfence://", "must name a host"),
        ("ringfence://127.0.0.1:x", "got 'x' in address"),
        ("ringfence://secret@127.0.0.1", "use the line in a .token file"),
        ("ringfence://127.0.0.1?cs=x", "unknown option 'cs'"),
        ("ringfence://127.0.0.1?ca=nowhere.pem", "nowhere.pem"),
        ("ringfence://10.0.0.1", "beyond loopback"),
    ],
)
def test_an_invalid_address_is_rejected_with_a_fix(run: Run, url: str, expected: str) -> None:
    message = refused(run("check", "api", "client=x", "--cluster", url))

    assert expected in message
    assert "secret" not in message


def test_an_unknown_token_is_rejected_as_invalid_input(run: Run, cluster: DemoCluster) -> None:
    url = f"ringfence://demo.{'00' * 32}@{cluster.url.partition('@')[2]}"

    message = refused(run("check", "api", "client=x", "--cluster", url))

    assert "this node does not know the token of 'demo'; add it to tokens.toml" in message


def test_the_certificate_of_another_cluster_is_rejected(
    run: Run, cluster: DemoCluster, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check"], 2)
    url = cluster.url.partition("?")[0] + f"?ca={tmp_path / 'keys' / 'ca.pem'}"

    assert "does not sign the certificate" in refused(
        run("check", "api", "client=x", "--cluster", url)
    )


def test_an_expired_ca_is_reported_with_its_expiry_date(run: Run, tmp_path: Path) -> None:
    ca, _ = new_authority(datetime.now(UTC) - timedelta(days=30), days=1)
    (tmp_path / "ca.pem").write_bytes(ca)
    url = f"ringfence://127.0.0.1:7101?ca={tmp_path / 'ca.pem'}"

    assert "expired on" in refused(run("check", "api", "client=x", "--cluster", url))


def test_an_unreachable_cluster_has_its_own_exit_status(run: Run) -> None:
    message = refused(run("members", "--cluster", "ringfence://127.0.0.1:9?timeout=0.1"), 3)

    assert "no node of the cluster answered" in message
    assert "127.0.0.1:9" in message
