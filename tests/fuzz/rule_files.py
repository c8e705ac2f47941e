"""Fuzz target: mutated rule files, which the loader must accept or reject as documented.

`python -m tests.fuzz.rule_files --seconds 60 --seed 1` mutates the rule files of the tests. With
`--atheris`, the package `atheris` chooses the bytes by coverage instead. No file may take more
processor time than `MAX_SECONDS`. All files together may take at most `MAX_BYTES` of memory.
"""

import argparse
import re
import resource
import sys
import time
from pathlib import Path
from random import Random

from ringfence.rules import RuleSet
from ringfence.rules.loading.yaml_files import RuleFileError, load_text
from ringfence.rules.report import describe

__all__ = ["MAX_BYTES", "MAX_SECONDS", "mutated", "run", "seeds"]

MAX_SECONDS = 2.0
MAX_BYTES = 256 << 20
_MAX_FILE = 64 << 10
_FILES = Path(__file__).parents[1] / "ringfence" / "rules" / "files"
_WORD = re.compile(rb"[\w.*-]+")
_WORDS = (b"0", b"1", b"7", b"65535", b"9007199254740993", b"true", b"minute", b"a*")
_TOKENS = (
    *(b"&a ", b"*a", b"<<: *a", b"? ", b"- ", b": ", b"{", b"}", b"[", b"]", b"|", b">"),
    *(b"%YAML 9\n", b"\r"),
    *(b"---\n", b"...\n", b"!!binary ", b"!!python/name:os.system ", b"'", b'"', b"#", b"\t"),
    *(b"\x00", b"\x1b", b"\xff", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b'"\\ud800"', b'"\\x00"', b"~"),
    *(b"0x10", b"0o7", b"1_0", b"-1", b".inf", b".nan", b"1e999", b"9" * 30, b"1:30"),
    *(b"2024-01-01", b"[" * 200),
    *(b"domain", b"descriptors", b"key", b"value", b"rate_limit", b"unit", b"requests_per_unit"),
    *(b"unlimited", b"replaces", b"name", b"defaults", b"algorithm", b"burst", b"period", b"slots"),
    *(b"align", b"timezone", b"soft", b"on_failure", b"scope", b"global", b"split", b"metadata"),
    *(b"shadow_mode", b"quota_mode", b"detailed_metric", b"share_threshold", b"value_to_metric"),
    *(b"minute", b"second", b"month", b"token_bucket", b"concurrency", b"*", b"a*b*"),
)


def seeds() -> list[bytes]:
    """Return the rule files of the tests, in order of their names."""
    return [path.read_bytes() for path in sorted(_FILES.rglob("*.yaml"))]


def mutated(files: list[bytes], random: Random) -> bytes:
    """Return one of the files with changes at a few places."""
    data = bytearray(random.choice(files))
    for _ in range(random.randint(1, random.choice((1, 2, 8)))):
        at = random.randrange(len(data) + 1)
        end = min(len(data), at + random.randint(0, 40))
        match random.randrange(14):
            case 0:
                data[at:end] = b""
            case 1:
                data[at:at] = random.choice(_TOKENS)
            case 2:
                data[at:end] = random.choice(_TOKENS)
            case 3:
                data[at:at] = data[at:end] * random.randint(1, 50)
            case 4:
                lines = bytes(data).splitlines(keepends=True)
                random.shuffle(lines)
                data = bytearray(b"".join(lines))
            case 5:
                other = random.choice(files)
                data[at:at] = other[random.randrange(len(other) + 1) :]
            case 6:
                data[at:end] = random.randbytes(random.randint(0, 8))
            case _:  # Replace a word: most of these files stay YAML.
                words = [*_WORD.finditer(data)]
                if words:
                    begin, stop = random.choice(words).span()
                    data[begin:stop] = random.choice((random.choice(words)[0], *_WORDS))
    return bytes(data[:_MAX_FILE])


def run(data: bytes) -> bool:
    """Load a file of these bytes; return whether it was accepted."""
    started = time.process_time()
    is_accepted = _is_accepted(data.decode("utf-8", "surrogateescape"))
    elapsed = time.process_time() - started
    assert elapsed < MAX_SECONDS, f"{len(data)} bytes took {elapsed:.1f} s"
    return is_accepted


def _is_accepted(text: str) -> bool:
    try:
        loaded = load_text(text)
    except RuleFileError:
        return False
    # Accepted rules survive the transfer to clients, and can be described as text.
    assert RuleSet.from_plain(loaded.rules.to_plain()) == loaded.rules
    for rule in loaded.rules.rules():
        assert loaded.rules.by_id(rule.id) == rule
    describe(loaded.rules, loaded.warnings)
    return True


def main(arguments: list[str]) -> int:
    """Fuzz for `--seconds`."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.rule_files")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--atheris", action="store_true")
    options = parser.parse_args(arguments)
    if options.atheris:
        import atheris

        atheris.Setup([sys.argv[0]], run)
        atheris.Fuzz()
    random = Random(options.seed)
    files = seeds()
    before = resident_bytes()
    deadline = time.monotonic() + options.seconds
    tried = accepted = 0
    while time.monotonic() < deadline:
        data = mutated(files, random)
        try:
            accepted += run(data)
        except BaseException:
            sys.stderr.write(f"file {tried} of seed {options.seed}: {data!r}\n")
            raise
        tried += 1
    grown = resident_bytes() - before
    assert grown < MAX_BYTES, f"{tried} files took {grown} bytes"
    sys.stdout.write(f"{tried} files, {accepted} accepted, peak memory grew by {grown >> 20} MiB\n")
    return 0


def resident_bytes() -> int:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
