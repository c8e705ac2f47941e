"""Programs that tests need: a missing program skips the test, or fails it in CI."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import programs
from tests.examples.proxies import Proxies


def test_a_missing_program_skips_the_test_and_explains_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "SYSTEM_PATH", "/nowhere")
    monkeypatch.delenv("RINGFENCE_ALL_PROGRAMS", raising=False)

    with pytest.raises(pytest.skip.Exception, match=r"nginx is not installed.* nginx-light"):
        programs.require("nginx")


def test_a_missing_program_fails_the_test_when_all_programs_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "SYSTEM_PATH", "/nowhere")
    monkeypatch.setenv("RINGFENCE_ALL_PROGRAMS", "1")

    with pytest.raises(pytest.fail.Exception, match="caddy is not installed"):
        programs.require("caddy")


def test_ci_installs_every_program_that_tests_need() -> None:
    run = (Path(__file__).parents[2] / ".ci" / "run").read_text("utf-8")

    assert [name for name in programs._INSTALL if f"\n{name} " not in run] == ["h2spec"]
    assert "go build -o h2spec " in run


def test_an_installed_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs._INSTALL, "sh", "apt-get install dash")

    assert programs.require("sh").endswith("/sh")


@pytest.mark.parametrize("proxy", ["nginx", "caddy", "haproxy"])
def test_every_test_of_a_missing_proxy_is_skipped_not_only_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, proxy: str
) -> None:
    monkeypatch.setattr(programs, "SYSTEM_PATH", "/nowhere")
    monkeypatch.delenv("RINGFENCE_ALL_PROGRAMS", raising=False)
    with ExitStack() as stack:
        proxies = Proxies([], tmp_path, stack)

        for _ in range(2):
            with pytest.raises(pytest.skip.Exception, match=f"{proxy} is not installed"):
                proxies.url(proxy)
    assert list(tmp_path.iterdir()) == []
