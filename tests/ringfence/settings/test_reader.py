"""Sources of settings and their precedence, for nodes and gateways."""

from pathlib import Path

import msgspec
import pytest

from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm
from ringfence.settings.reader import SettingsReader


class Example(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str = "default"
    count: int = 1
    seeds: list[str] = []
    is_on: bool = False
    file: str = ""
    algorithm: Algorithm = Algorithm.SLIDING_WINDOW


READER = SettingsReader(Example, "EXAMPLE_", paths=("file",), example="examples/it.toml")


def read(
    text: str | None = None,
    directory: Path = Path(),
    environment: dict[str, str] | None = None,
    **flags: object,
) -> Example:
    path = None
    if text is not None:
        path = directory / "it.toml"
        path.write_text(text, "utf-8")
    return READER.read(path, environment or {}, flags, lambda settings: settings)


def test_flags_override_the_environment_and_that_overrides_the_file(tmp_path: Path) -> None:
    text = 'name = "file"\ncount = 2\nis_on = true'
    environment = {"EXAMPLE_NAME": "environment", "EXAMPLE_COUNT": "3", "OTHER_NAME": "x"}

    settings = read(text, tmp_path, environment, name="flag", count=None, seeds=[])

    assert settings == Example(name="flag", count=3, is_on=True)


def test_an_empty_flag_overrides_the_other_sources(tmp_path: Path) -> None:
    assert read('name = "file"', tmp_path, name="").name == ""


def test_without_sources_defaults_apply() -> None:
    assert read() == Example()


def test_a_list_in_the_environment_is_separated_by_commas() -> None:
    assert read(environment={"EXAMPLE_SEEDS": "a, b,"}).seeds == ["a", "b"]


def test_paths_in_a_file_are_relative_to_it_and_other_paths_are_unchanged(tmp_path: Path) -> None:
    assert read('file = "x/y"', tmp_path).file == str(tmp_path / "x" / "y")
    assert read('file = "/x"', tmp_path).file == "/x"
    assert read('file = ""', tmp_path).file == ""
    assert read(environment={"EXAMPLE_FILE": "x"}).file == "x"
    assert read(file="x").file == "x"


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("nmae = 1", {}, "it.toml: unknown setting 'nmae'; did you mean 'name'?"),
        ("count = true", {}, "it.toml: count must be a whole number, got true or false"),
        (
            "",
            {"EXAMPLE_COUNTS": "1"},
            "environment: unknown variable EXAMPLE_COUNTS; did you mean 'EXAMPLE_COUNT'?",
        ),
        (
            "",
            {"EXAMPLE_COUNT": "many"},
            "environment: EXAMPLE_COUNT must be a whole number, got 'many'",
        ),
        (
            "",
            {"EXAMPLE_ALGORITHM": "x"},
            "environment: EXAMPLE_ALGORITHM must be one of token_bucket, ",
        ),
        ("count = [", {}, "it.toml: must be TOML, got: "),
    ],
)
def test_an_error_names_its_source(
    tmp_path: Path, text: str, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text, tmp_path, environment)

    assert message in str(caught.value)


def test_a_missing_file_is_reported_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it\.toml: no such file; write one as in examples/it"):
        READER.read(tmp_path / "it.toml", {}, {}, lambda settings: settings)


def test_an_error_in_a_check_names_the_source(tmp_path: Path) -> None:
    def reject(settings: Example) -> Example:
        raise ConfigError("count must be even, got 1")

    with pytest.raises(ConfigError, match=r"^settings from flags and environment: count must be"):
        READER.read(None, {}, {}, reject)


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    environment = {"EXAMPLE_COUNT": "many", "EXAMPLE_ALGORITHMS": "x", "EXAMPLE_NAME": "valid"}

    with pytest.raises(ConfigError) as raised:
        read('nmae = 1\nis_on = "yes"\nfile = "valid"', tmp_path, environment)

    places = [line.partition(";")[0] for line in str(raised.value).splitlines()]
    assert places == [
        "environment: unknown variable EXAMPLE_ALGORITHMS",
        "environment: EXAMPLE_COUNT must be a whole number, got 'many'",
        f"{tmp_path / 'it.toml'}: unknown setting 'nmae'",
        f"{tmp_path / 'it.toml'}: is_on must be true or false, got text",
    ]


def test_every_line_of_a_later_problem_names_the_source(tmp_path: Path) -> None:
    path = tmp_path / "it.toml"
    path.write_text("count = 0", "utf-8")

    def complete(settings: Example) -> Example:
        raise ConfigError("count must be at least 1\nname must be set")

    with pytest.raises(ConfigError) as raised:
        READER.read(path, {}, {}, complete)

    assert str(raised.value).splitlines() == [
        f"{path}: count must be at least 1",
        f"{path}: name must be set",
    ]
