"""Test suites of Flask-Limiter and slowapi on the Ringfence storage and an in-process cluster.

    python -m tests.ringfence.integrations.limits.suites

runs Flask-Limiter's suite from its source package. A path of a checkout as argument runs slowapi's
suite, because its package has no tests.

This program is not part of the fast suite: it fetches the source package and test libraries from
the package index. It exits with status 77 if that fails, and otherwise with the status of pytest.
`LEFT_OUT` lists tests of the internals of other stores, which are not run.
"""

import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["LEFT_OUT", "main"]

_HERE = Path(__file__).parent
_SKIPPED = 77
_LIBRARIES = ("hiro", "six", "mock", "pytest-mock", "pytest-check", "flask-restful", "flask-restx")
_DEPENDENCIES = ("aniso8601", "pytz", "importlib_resources", "jsonschema", "referencing", "attrs")
_MORE_DEPENDENCIES = ("jsonschema-specifications", "rpds-py")
LEFT_OUT = {
    "tests/test_configuration.py::test_constructor_arguments_over_config": (
        "asserts that memory:// is the class MemoryStorage"
    ),
    "tests/test_flask_ext.py::test_reset_unsupported": (
        "asserts that reset() does nothing, as in Memcached; Ringfence removes all keys"
    ),
    "tests/test_fastapi_extension.py::TestDecorators::test_callable_cost": (
        "spends 7.5, which memory:// accepts; Redis and Ringfence refuse fractions"
    ),
}
"""Reason to skip, by test: each test depends on the internals of another store."""


def main(arguments: list[str]) -> int:
    """Run one suite; return the status."""
    with TemporaryDirectory() as scratch:
        libraries = Path(scratch, "libraries")
        try:
            _pip(
                "install",
                "--target",
                str(libraries),
                *_LIBRARIES,
                *_DEPENDENCIES,
                *_MORE_DEPENDENCIES,
            )
            suite = Path(arguments[0]) if arguments else _flask_limiter(Path(scratch))
        except subprocess.SubprocessError as error:
            print(f"skipped: the package index is not available: {error}", file=sys.stderr)  # noqa: T201
            return _SKIPPED
        left_out = [f"--deselect={test}" for test in LEFT_OUT]
        options = ["-q", "-c", os.devnull, "--rootdir", str(suite), "-p", "on_ringfence"]
        without_plugins = ["-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:faker"]
        environment = os.environ | {
            "PYTHONPATH": str(_HERE),
            "RINGFENCE_SUITE_LIBRARIES": str(libraries),
        }
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, *without_plugins, *left_out, "tests"],
            cwd=suite,
            env=environment,
            check=False,
        ).returncode


def _flask_limiter(scratch: Path) -> Path:
    """Fetch and unpack the source package of the installed version; return its folder."""
    wanted = f"Flask-Limiter=={version('Flask-Limiter')}"
    _pip("download", "--no-binary", "Flask-Limiter", "--dest", str(scratch), wanted)
    [archive] = scratch.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(scratch, filter="data")
    return archive.with_name(archive.name.removesuffix(".tar.gz"))


def _pip(command: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", command, "-q", "--no-deps", *arguments],
        check=True,
        timeout=300,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
