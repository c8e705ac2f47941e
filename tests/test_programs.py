"""A test whose program is missing is skipped, or fails where all programs must be there."""

import pytest

from tests import programs


def test_a_missing_program_skips_and_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "SYSTEM_PATH", "/nowhere")
    monkeypatch.delenv("RINGFENCE_ALL_PROGRAMS", raising=False)

    with pytest.raises(pytest.skip.Exception, match=r"nginx is not installed.* nginx-light"):
        programs.require("nginx")


def test_a_missing_program_fails_where_all_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SYSTEM_PATH", "/nowhere")
    monkeypatch.setenv("RINGFENCE_ALL_PROGRAMS", "1")

    with pytest.raises(pytest.fail.Exception, match="caddy is not installed"):
        programs.require("caddy")


def test_a_program_that_is_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs._DEBIAN_PACKAGES, "sh", "dash")

    assert programs.require("sh").endswith("/sh")
