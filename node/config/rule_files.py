"""The rules on disk, and when they have changed.

A bad file never replaces good rules: it is reported, once, and the rules in force stay.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from ringfence.errors import ConfigError, LocalProtocolError
from ringfence.limiter import Algorithm
from ringfence.rules import RuleSet
from ringfence.rules.loading.yaml_files import Defaults, load_path
from ringfence.wire import PackedRules

__all__ = ["RuleFiles"]

logger = logging.getLogger("ringfence.node")


class RuleFiles:
    """A rule file or a directory of rule files."""

    def __init__(self, path: Path, default_algorithm: Algorithm, *, merge: bool) -> None:
        self.refusals = 0
        """How often rules were read again and were not good."""
        self.refusal = ""
        """What is wrong with the rules on disk; empty when they are in force."""
        self._path = path
        self._defaults = Defaults(algorithm=default_algorithm)
        self._merge = merge
        self._seen: tuple[tuple[str, int, int, int], ...] = ()
        self._version = -1

    def load(self) -> RuleSet:
        """Read the rules; raises `ConfigError` that names every fault.

        Each load has a higher version than the one before, even when it reads older files: that is
        how clients hear of a roll-back.
        """
        self._seen = self._look()
        loaded = load_path(self._path, defaults=self._defaults, merge=self._merge)
        for warning in loaded.warnings:
            logger.warning("rules: %s", warning)
        version = max(loaded.rules.version, self._version + 1)
        rules = RuleSet(loaded.rules.contents, version=version)
        self._check_size(rules)
        rules.content_hash()  # Here, for this may run in a thread.
        self._version = version
        self.refusal = ""
        return rules

    def load_if_changed(self) -> RuleSet | None:
        """Read the rules again when a file was written, added or removed since the last look."""
        return self.reload() if self._look() != self._seen else None

    def reload(self) -> RuleSet | None:
        """Read the rules again; None, with the reason in the log, when they are not good."""
        try:
            return self.load()
        except ConfigError as error:
            self.refusals += 1
            self.refusal = str(error)
            logger.error("rules not reloaded, the old ones stay in force: %s", error)
            return None

    def _check_size(self, rules: RuleSet) -> None:
        """Clients fetch all rules in one message: rules that do not fit would limit nobody."""
        try:
            PackedRules(rules.version, rules.to_plain())
        except LocalProtocolError as error:
            raise ConfigError(
                f"{self._path}: the rules are too many to be sent to clients ({error}); "
                "use wildcards instead of listing values"
            ) from error

    def _look(self) -> tuple[tuple[str, int, int, int], ...]:
        """What tells one state of the files from another; a swapped symbolic link shows too."""
        return tuple(sorted(_marks(self._files())))

    def _files(self) -> list[Path]:
        try:
            return [self._path, *self._path.iterdir()] if self._path.is_dir() else [self._path]
        except OSError:
            return [self._path]


def _marks(files: Iterable[Path]) -> Iterable[tuple[str, int, int, int]]:
    for file in files:
        try:
            found = file.stat()
        except OSError:
            continue
        yield str(file), found.st_mtime_ns, found.st_size, found.st_ino
