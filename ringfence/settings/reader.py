"""Reader of settings from defaults, a TOML file, the environment and flags.

Each of these sources overrides the earlier ones. Unknown names are refused, because a misspelt
setting would otherwise be ignored.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from ringfence.errors import ConfigError
from ringfence.settings.validation_errors import choices_of, describe_error

__all__ = ["SettingsReader"]

_Settings = TypeVar("_Settings", bound=msgspec.Struct)


class SettingsReader(Struct, Generic[_Settings], frozen=True):
    """Reader of the settings of one program, which fills a msgspec struct."""

    kind: type[_Settings]
    """A struct with a default for each setting, which forbids unknown ones."""
    prefix: str
    """Prefix of the environment variables: `PREFIX_` and the name of the setting in capitals."""
    paths: tuple[str, ...]
    """Settings that are paths. In the file they are relative to the file."""
    example: str
    """Example file, which the error about a missing file names."""

    def read(
        self,
        file: Path | None,
        environment: Mapping[str, str],
        flags: Mapping[str, object],
        complete: Callable[[_Settings], _Settings],
    ) -> _Settings:
        """Read the settings of a program from all sources: defaults, file, environment and flags.

        A flag that is None or an empty list counts as absent. `complete` sets the defaults that
        depend on other settings, and checks the values. Raises `ConfigError` with one line for each
        problem, which names the source and the setting.
        """
        source = "settings from flags and environment" if file is None else str(file)
        values = {} if file is None else self._read_file(file)
        of_environment, problems = self._read_environment(environment)
        values |= of_environment
        values |= {name: value for name, value in flags.items() if value not in (None, [])}
        problems += [f"{source}: {problem}" for problem in self._problems_of(values)]
        if problems:
            raise ConfigError("\n".join(problems))
        try:
            return complete(msgspec.convert(values, self.kind))
        except ConfigError as error:
            lines = str(error).splitlines()
            raise ConfigError("\n".join([f"{source}: {line}" for line in lines])) from error

    def _read_file(self, file: Path) -> dict[str, Any]:
        import tomllib  # Processes without a settings file start faster.

        try:
            values = tomllib.loads(file.read_text("utf-8"))
        except FileNotFoundError as error:
            raise ConfigError(
                f"{file}: no such file; write one as in {self.example}, or name another with "
                "--config"
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: cannot be read: {error}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{file}: must be TOML, got: {error}; correct that line") from error
        for name in self.paths:
            if isinstance(values.get(name), str) and values[name]:
                values[name] = str(file.parent / values[name])
        return values

    def _read_environment(self, environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
        """Return the values of valid variables, and the problems of the others."""
        types = {field.name: field.type for field in msgspec.structs.fields(self.kind)}
        values: dict[str, Any] = {}
        problems: list[str] = []
        for variable in sorted(environment):
            if not variable.startswith(self.prefix):
                continue
            name = variable.removeprefix(self.prefix).lower()
            if name not in types:
                hint = self._suggest(variable)
                problems.append(f"environment: unknown variable {variable}; {hint}")
                continue
            text = environment[variable]
            if types[name] == list[str]:
                values[name] = [each.strip() for each in text.split(",") if each.strip()]
                continue
            try:
                values[name] = msgspec.convert(text, types[name], strict=False)
            except msgspec.ValidationError as error:
                choices = {variable: choices_of(self.kind).get(name, [])}
                what = describe_error(error, choices=choices, place=variable, value=text)
                problems.append(f"environment: {what}")
        return values, problems

    def _suggest(self, variable: str) -> str:
        known = [self.prefix + name.upper() for name in self.kind.__struct_fields__]
        near = get_close_matches(variable, known, n=1)
        return f"did you mean {near[0]!r}?" if near else f"use one of: {', '.join(known)}"

    def _problems_of(self, values: Mapping[str, object]) -> list[str]:
        """Return the problems of unknown settings and of values of a wrong type."""
        fields, choices = self.kind.__struct_fields__, choices_of(self.kind)
        problems: list[str] = []
        for name, value in values.items():
            try:
                msgspec.convert({name: value}, self.kind)
            except msgspec.ValidationError as error:
                problems.append(describe_error(error, fields=fields, choices=choices))
        return problems
