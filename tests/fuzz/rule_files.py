"""Fuzz target: mutated rule files, which the loader must take or refuse with its documented error.

`python -m tests.fuzz.rule_files --seconds 60 --seed 1` mutates the rule files of the tests; with
the package `atheris` installed, `--atheris` lets coverage guide the bytes instead. A file may take
neither more processor time than `MAX_SECONDS` nor, all files together, more memory than
`MAX_BYTES`.
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
    """The rule files of the tests, in order of their names."""
    return [path.read_bytes() for path in sorted(_FILES.rglob("*.yaml"))]


def mutated(files: list[bytes], random: Random) -> bytes:
    """Change one of some files in a few places."""
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
            case _:  # One word for another: most such files stay YAML.
                words = [*_WORD.finditer(data)]
                if words:
                    begin, stop = random.choice(words).span()
                    data[begin:stop] = random.choice((random.choice(words)[0], *_WORDS))
    return bytes(data[:_MAX_FILE])


def run(data: bytes) -> bool:
    """Load a file of these bytes; return whether it was taken."""
    began = time.process_time()
    is_taken = _is_taken(data.decode("utf-8", "surrogateescape"))
    took = time.process_time() - began
    assert took < MAX_SECONDS, f"{len(data)} bytes took {took:.1f} s"
    return is_taken


def _is_taken(text: str) -> bool:
    try:
        loaded = load_text(text)
    except RuleFileError:
        return False
    # What was taken survives the way to the clients, and can be told to people.
    assert RuleSet.from_plain(loaded.rules.to_plain()) == loaded.rules
    for rule in loaded.rules.rules():
        assert loaded.rules.by_id(rule.id) == rule
    describe(loaded.rules, loaded.warnings)
    return True


def main(arguments: list[str]) -> int:
    """Fuzz for a while."""
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
    until = time.monotonic() + options.seconds
    tried = taken = 0
    while time.monotonic() < until:
        data = mutated(files, random)
        try:
            taken += run(data)
        except BaseException:
            sys.stderr.write(f"file {tried} of seed {options.seed}: {data!r}\n")
            raise
        tried += 1
    grown = resident_bytes() - before
    assert grown < MAX_BYTES, f"{tried} files took {grown} bytes"
    sys.stdout.write(f"{tried} files, {taken} taken, {grown >> 20} MiB more at most\n")
    return 0


def resident_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
