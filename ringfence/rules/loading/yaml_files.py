"""Rule files in YAML, loaded into a `RuleSet`. Only nodes and tools import this module.

A load returns all rules, or raises an error with all problems. Nothing is changed in place, so a
bad file never replaces good rules by itself. `build` decides the meaning of the keys; this module
reads files and decodes them, within bounds.
"""

import stat
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from ringfence.rules.loading.build import LoadedRules, SourceFile, build_rules
from ringfence.rules.loading.mapping import load_mapping
from ringfence.rules.loading.problems import Findings, Problem, RuleFileError
from ringfence.rules.loading.rate_limit import Defaults
from ringfence.rules.loading.values import MAX_DEPTH
from ringfence.rules.loading.yaml_composer import MAX_VALUES, InvalidYaml, compose
from ringfence.rules.ruleset import RuleSet

__all__ = [
    "MAX_DEPTH",
    "MAX_FILE_BYTES",
    "MAX_VALUES",
    "Defaults",
    "LoadedRules",
    "Problem",
    "RuleFileError",
    "load_files",
    "load_mapping",
    "load_path",
    "load_text",
]

MAX_FILE_BYTES = 4 * 1024 * 1024

_SUFFIXES = (".yaml", ".yml")


def load_text(
    text: str, filename: str = "rules", *, defaults: Defaults | None = None
) -> LoadedRules:
    """Load rules from the text of one file; the version is 0.

    Raises `RuleFileError`, a `ConfigError` that lists all problems.
    """
    findings = Findings()
    files = _parse([(filename, text)], findings)
    return build_rules(files, findings, defaults, merge=False, version=0)


def load_files(
    paths: Sequence[Path], *, defaults: Defaults | None = None, merge: bool = False
) -> LoadedRules:
    """Load rules from several files, in the given order.

    The version is the time of the latest change, in ms. With `merge`, several files may contribute
    to one domain. Raises `RuleFileError`, a `ConfigError` that lists all problems of all files.
    """
    findings = Findings()
    # Taken before reading, so that a change in between gives the next load a higher version.
    version = _latest_change(paths)
    texts = [(str(path), text) for path in paths if (text := _read(path, findings)) is not None]
    return build_rules(_parse(texts, findings), findings, defaults, merge=merge, version=version)


def load_path(path: Path, *, defaults: Defaults | None = None, merge: bool = False) -> LoadedRules:
    """Read one file, or every `*.yaml` and `*.yml` file of a directory in sorted order.

    Hidden files (names that begin with a dot) and directories are skipped. A symbolic link without
    a target is an error. Otherwise as `load_files`. The directory's own modification time counts
    for the version too, because removing a file changes it. Raises `RuleFileError`.
    """
    before = _latest_change([path])
    try:
        is_directory = path.is_dir()
        paths = sorted(filter(_is_rule_file, path.iterdir())) if is_directory else [path]
    except OSError as error:
        raise RuleFileError([_unreadable(path, error)]) from error
    if not is_directory:
        return load_files(paths, defaults=defaults, merge=merge)
    if not paths:
        what = "the directory contains no rule file"
        raise RuleFileError([Problem(str(path), 0, "", what, "add a *.yaml file")])
    loaded = load_files(paths, defaults=defaults, merge=merge)
    rules = RuleSet(loaded.rules.contents, version=max(before, loaded.rules.version))
    return replace(loaded, rules=rules)


def _is_rule_file(path: Path) -> bool:
    if path.suffix not in _SUFFIXES or path.name.startswith("."):
        return False
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        # The file was removed, which is not an error, or it is a symbolic link without a target.
        # Reading the link reports the error. Otherwise its limits would vanish silently.
        return path.is_symlink()
    except OSError:
        return True  # Reading the file reports the error.


def _latest_change(paths: Sequence[Path]) -> int:
    """Return the time of the latest change of the files in `paths`, in ms; missing files are
    ignored."""
    times = [0]
    for path in paths:
        try:
            times.append(path.stat().st_mtime_ns // 1_000_000)
        except OSError:
            continue  # Reading the file reports the error.
    return max(times)


def _read(path: Path, findings: Findings) -> str | None:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        findings.errors.append(_unreadable(path, error))
        return None
    try:
        if len(content) <= MAX_FILE_BYTES:
            return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"byte {content[error.start]:#04x} is not UTF-8"
        findings.errors.append(Problem(str(path), line, "", what, "save the file as UTF-8"))
        return None
    what = f"the file is larger than {MAX_FILE_BYTES // 2**20} MiB"
    findings.errors.append(Problem(str(path), 0, "", what, "split it"))
    return None


def _unreadable(path: Path, error: OSError) -> Problem:
    reason = (error.strerror or str(error)).lower()
    return Problem(str(path), 0, "", f"cannot be read: {reason}", "check the path and its rights")


def _parse(texts: Sequence[tuple[str, str]], findings: Findings) -> list[SourceFile]:
    files: list[SourceFile] = []
    for name, text in texts:
        try:
            files.append(SourceFile(name, compose(text)))
        except InvalidYaml as error:
            findings.errors.append(Problem(name, error.line, "", error.what, error.fix))
    return files
