import pytest

from ringfence.transport import Settings


@pytest.mark.parametrize(
    "wrong",
    [
        {"keepalive": 30.0},
        {"keepalive": 0.0},
        {"handshake_timeout": 0.0},
        {"max_half_open": 0, "retry_above": 0},
        {"retry_above": 300},
        {"max_connections": 100},
        {"untrusted_receive_window": 1000},
        {"receive_window": 4096},
        {"max_datagram": 1199},
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Settings(**wrong)  # type: ignore[arg-type]
