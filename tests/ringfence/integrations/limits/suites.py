"""Test suites of Flask-Limiter and slowapi on our storage, in the in-process test cluster.

    python -m tests.ringfence.integrations.limits.suites

runs Flask-Limiter's suite from its source package. A path of a checkout as argument runs slowapi's
suite, because its package has no tests.

Not part of the fast suite: it fetches the source package and test libraries from the package index.
Where that fails it says so and ends with status 77. Otherwise the status is pytest's own. Tests of
another store's internals are left out, with the reason.
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
_OF_THESE = ("aniso8601", "pytz", "importlib_resources", "jsonschema", "referencing", "attrs")
_OF_THOSE = ("jsonschema-specifications", "rpds-py")
LEFT_OUT = {
    "tests/test_configuration.py::test_constructor_arguments_over_config": (
        "asks that memory:// is the class MemoryStorage"
    ),
    "tests/test_flask_ext.py::test_reset_unsupported": (
        "asks that reset() does nothing, as Memcached cannot; ours forgets all keys"
    ),
    "tests/test_fastapi_extension.py::TestDecorators::test_callable_cost": (
        "spends 7.5, which memory:// takes; Redis refuses fractions as we do"
    ),
}
"""By test: why it is one of another store's internals."""


def main(arguments: list[str]) -> int:
    """Run one suite; return the status."""
    with TemporaryDirectory() as scratch:
        libraries = Path(scratch, "libraries")
        try:
            _pip("install", "--target", str(libraries), *_LIBRARIES, *_OF_THESE, *_OF_THOSE)
            suite = Path(arguments[0]) if arguments else _flask_limiter(Path(scratch))
        except subprocess.SubprocessError as error:
            print(f"skipped: the package index gave nothing: {error}", file=sys.stderr)  # noqa: T201
            return _SKIPPED
        left_out = [f"--deselect={test}" for test in LEFT_OUT]
        words = ["-q", "-c", os.devnull, "--rootdir", str(suite), "-p", "on_ringfence"]
        plain = ["-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:faker"]
        environment = os.environ | {
            "PYTHONPATH": str(_HERE),
            "RINGFENCE_SUITE_LIBRARIES": str(libraries),
        }
        return subprocess.run(
            [sys.executable, "-m", "pytest", *words, *plain, *left_out, "tests"],
            cwd=suite,
            env=environment,
            check=False,
        ).returncode


def _flask_limiter(scratch: Path) -> Path:
    """Fetch the source package of the version that is installed, and unpack it."""
    wanted = f"Flask-Limiter=={version('Flask-Limiter')}"
    _pip("download", "--no-binary", ":all:", "--dest", str(scratch), wanted)
    [archive] = scratch.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(scratch, filter="data")
    return archive.with_name(archive.name.removesuffix(".tar.gz"))


def _pip(command: str, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", command, "-q", "--no-deps", *words], check=True, timeout=300
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
