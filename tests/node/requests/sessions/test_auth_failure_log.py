"""Log of rejected credentials, with a bounded number of lines."""

import pytest

from node.requests.sessions.auth_failure_log import AuthFailureLog
from ringfence.wire import Hello, Role

SECOND = 10**9
AT = ("192.0.2.1", 5000)


def client(name: str, secret: bytes = b"wrong") -> Hello:
    return Hello(Role.CLIENT, name, secret, 1)


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_rejected_tokens_and_nodes_are_logged_with_name_and_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = AuthFailureLog()

    log.log(client("app"), AT, 0)
    log.log(Hello(Role.NODE, "b", b"", 1), AT, 0)

    assert reported(caplog) == [
        "refused unknown or wrong token of 'app' at 192.0.2.1:5000",
        "refused unknown or wrong cluster key or cluster name of 'b' at 192.0.2.1:5000",
    ]


def test_a_client_without_a_token_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    log = AuthFailureLog()

    log.log(client("anonymous", b""), AT, 0)

    assert reported(caplog) == ["refused a client without a token at 192.0.2.1:5000"]


def test_a_name_is_logged_once_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    log = AuthFailureLog()

    for second in range(25):
        log.log(client("app"), AT, second * SECOND)

    assert len(reported(caplog)) == 3


def test_many_names_cannot_fill_the_log_and_expire(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = AuthFailureLog()

    for number in range(1000):
        log.log(client(f"app{number}"), AT, 0)
    flood = len(reported(caplog))
    log.log(client("late"), AT, 11 * SECOND)

    assert flood == 64
    assert "'late'" in reported(caplog)[-1]
