"""Command `ringfence info` with each choice of the engine."""

import json

import pytest
from click.testing import CliRunner

from node.cli.info import info
from ringfence.errors import ConfigError
from ringfence.limiter import why_not_compiled
from ringfence.peering.engine_choice import ENVIRONMENT, chosen_engine


def test_the_compiled_engine_is_chosen_when_it_was_built(monkeypatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)

    choice = chosen_engine()

    assert choice.is_compiled == (why_not_compiled() is None)
    assert choice.reason == (
        why_not_compiled() or "the compiled tables were built with the package"
    )


def test_the_reference_engine_can_be_chosen_and_info_shows_it() -> None:
    result = CliRunner(env={ENVIRONMENT: "reference"}).invoke(info, [])

    assert result.exit_code == 0
    first, second, *rest = result.stdout.splitlines()
    assert first.split() == ["engine", "reference"]
    assert second.split(maxsplit=1) == ["because", "RINGFENCE_ENGINE=reference asks for it"]
    assert rest[-1].startswith("The reference engine is exact but slower")


def test_json_output_has_engine_reason_and_versions() -> None:
    result = CliRunner(env={ENVIRONMENT: "auto"}).invoke(info, ["--json"])

    facts = json.loads(result.stdout)
    assert facts["engine"] in ("compiled", "reference")
    assert {"because", "python", "platform", "ringfence", "trio", "aioquic"} <= facts.keys()


def test_an_unknown_engine_is_rejected_with_the_known_engines(monkeypatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "fast")

    with pytest.raises(ConfigError, match="must be compiled, reference or auto, got fast"):
        chosen_engine()
