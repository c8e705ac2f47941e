import logging
import socket
from pathlib import Path

import pytest

from node.supervisor.systemd import notify_systemd


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_is_notified_by_one_datagram(tmp_path: Path, kind: str) -> None:
    address = f"@ringfence-{tmp_path}" if kind == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + address[1:] if kind == "abstract" else address)
        systemd.settimeout(10)

        notify_systemd("READY=1", {"NOTIFY_SOCKET": address})

        assert systemd.recv(100) == b"READY=1"


def test_without_a_socket_of_systemd_nothing_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notify_systemd("READY=1", {})
    notify_systemd("READY=1", {"NOTIFY_SOCKET": "vsock:2:1234"})

    assert caplog.records == []


def test_a_missing_socket_of_systemd_is_logged_and_raises_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ringfence.node")

    notify_systemd("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "gone")})

    [record] = caplog.records
    assert (
        record.getMessage()
        == "systemd could not be notified: state=READY=1 error=No such file or directory"
    )
