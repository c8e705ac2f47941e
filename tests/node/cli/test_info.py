"""`ringfence info` in every state that the engine can be in."""

import json

import pytest
from click.testing import CliRunner

from node.cli.info import info
from ringfence.errors import ConfigError
from ringfence.limiter import why_not_compiled
from ringfence.peering.engine_choice import ENVIRONMENT, chosen_engine


def test_the_engine_is_the_compiled_one_where_it_was_built(monkeypatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)

    choice = chosen_engine()

    assert choice.is_compiled == (why_not_compiled() is None)
    assert choice.reason == (
        why_not_compiled() or "the compiled tables were built with the package"
    )


def test_the_reference_can_be_asked_for_and_info_says_so() -> None:
    ran = CliRunner(env={ENVIRONMENT: "reference"}).invoke(info, [])

    assert ran.exit_code == 0
    first, second, *rest = ran.stdout.splitlines()
    assert first.split() == ["engine", "reference"]
    assert second.split(maxsplit=1) == ["because", "RINGFENCE_ENGINE=reference asks for it"]
    assert rest[-1].startswith("The reference engine is exact but slower")


def test_a_machine_reads_engine_reason_and_versions() -> None:
    ran = CliRunner(env={ENVIRONMENT: "auto"}).invoke(info, ["--json"])

    facts = json.loads(ran.stdout)
    assert facts["engine"] in ("compiled", "reference")
    assert {"because", "python", "platform", "ringfence", "trio", "aioquic"} <= facts.keys()


def test_an_engine_that_does_not_exist_is_refused_with_those_that_do(monkeypatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "fast")

    with pytest.raises(ConfigError, match="must be compiled, reference or auto, got fast"):
        chosen_engine()
