"""Rule files on disk, and detection of their changes.

An invalid file never replaces the current rules. The error is logged once.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from ringfence.errors import ConfigError, LocalProtocolError
from ringfence.limiter import Algorithm
from ringfence.rules import RuleSet
from ringfence.rules.loading.yaml_files import Defaults, load_path
from ringfence.wire import PackedRules

__all__ = ["RuleFiles"]

logger = logging.getLogger("ringfence.node")


class RuleFiles:
    """One rule file, or a directory of rule files."""

    def __init__(self, path: Path, default_algorithm: Algorithm, *, merge: bool) -> None:
        self.refusals = 0
        """Number of reloads that were rejected."""
        self.refusal = ""
        """Error of the rules on disk; empty if they are in force."""
        self._path = path
        self._defaults = Defaults(algorithm=default_algorithm)
        self._merge = merge
        self._seen: tuple[tuple[str, int, int, int, int], ...] = ()
        self._version = -1

    def load(self) -> RuleSet:
        """Load the rules from the files. Raises `ConfigError`, which lists every error.

        Each load has a higher version than the previous one, even if the files are older. So
        clients also receive a roll-back.
        """
        self._seen = self._fingerprints()
        loaded = load_path(self._path, defaults=self._defaults, merge=self._merge)
        for warning in loaded.warnings:
            logger.warning("rules: %s", warning)
        version = max(loaded.rules.version, self._version + 1)
        rules = RuleSet(loaded.rules.contents, version=version)
        self._check_size(rules)
        rules.content_hash()  # Assigned here, because this may run in a thread.
        self._version = version
        self.refusal = ""
        return rules

    def has_changed(self) -> bool:
        """Return whether a file was written, added or removed since the rules were loaded."""
        return self._fingerprints() != self._seen

    def wait_for_change(self, wait: Callable[[], bool]) -> None:
        """Block this thread until a file was written, added or removed; call `wait` before each
        look, and return when it returns True."""
        while not wait() and not self.has_changed():
            pass

    def reload(self) -> RuleSet | None:
        """Load the rules from the files again. If they are invalid, log the reason and return
        None."""
        try:
            return self.load()
        except ConfigError as error:
            self.refusals += 1
            self.refusal = str(error)
            logger.error("rules not reloaded, the old ones stay in force: %s", error)
            return None

    def _check_size(self, rules: RuleSet) -> None:
        """Raise `ConfigError` if all rules together do not fit into the one message that clients
        receive."""
        try:
            PackedRules(rules.version, rules.to_plain())
        except LocalProtocolError as error:
            raise ConfigError(
                f"{self._path}: the rules are too many to be sent to clients ({error}); "
                "use wildcards instead of listing values"
            ) from error

    def _fingerprints(self) -> tuple[tuple[str, int, int, int, int], ...]:
        """Return a fingerprint of the rule files, which also changes with the target of a symbolic
        link."""
        return tuple(sorted(_fingerprints_of(self._files())))

    def _files(self) -> list[Path]:
        try:
            return [self._path, *self._path.iterdir()] if self._path.is_dir() else [self._path]
        except OSError:
            return [self._path]


def _fingerprints_of(files: Iterable[Path]) -> Iterable[tuple[str, int, int, int, int]]:
    for file in files:
        try:
            found = file.stat()
        except OSError:
            continue
        yield str(file), found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
