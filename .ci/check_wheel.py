"""Check that a wheel contains exactly our packages, all typed: `check_wheel.py WHEEL`."""

import sys
from pathlib import Path
from zipfile import ZipFile

PACKAGES = {"gossip", "hashring", "node", "ringfence", "simulations"}


def faults(names: list[str]) -> list[str]:
    """Return what is missing in the files of a wheel, and which packages are unexpected."""
    found = []
    tops = {name.split("/")[0] for name in names}
    packages = {top for top in tops if not top.endswith(".dist-info")}
    if packages != PACKAGES:
        found.append(f"packages are {sorted(packages)}, not {sorted(PACKAGES)}")
    found += [
        f"{package}/py.typed is missing"
        for package in sorted(PACKAGES)
        if f"{package}/py.typed" not in names
    ]
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        found.append("the licence is missing")
    if "node/demo/semicomplete-2015-05.log.gz" not in names:
        found.append("the demo's log is missing")
    return found


def main() -> None:
    """Check the wheel that the command line names."""
    wheel = Path(sys.argv[1])
    found = faults(ZipFile(wheel).namelist())
    if found:
        sys.exit(f"{wheel.name}: " + "; ".join(found))
    sys.stdout.write(f"{wheel.name}: {', '.join(sorted(PACKAGES))}, typed\n")


main()
