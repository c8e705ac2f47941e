"""Entry point of the `ringfence` command, which names a missing package and how to install it."""

import gc
import os
import sys

__all__ = ["defer_garbage_collection", "main"]

_NEW_OBJECTS = 200_000
"""New objects before a garbage collection: more than all imports of a node create."""


def defer_garbage_collection() -> None:
    """Make Python collect garbage rarely, because imports create many objects and all of them
    stay."""
    gc.set_threshold(_NEW_OBJECTS)


def main() -> None:
    """Run the `ringfence` command line."""
    defer_garbage_collection()
    _open_closed_streams()
    try:
        from node.cli.command import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("node", "ringfence", "hashring"):
            raise
        sys.stderr.write(
            f"ringfence: the command line needs {error.name!r}, which is not installed; "
            "install it with its extra: pip install '.[node]' in a checkout, "
            "or 'ringfence[node]' where it is published\n"
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("ringfence: interrupted\n")
        sys.exit(130)
    run()


def _open_closed_streams() -> None:
    """Discard the output if the parent process has closed it; Python has no stream for it then."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # In this order, each gets the number of its stream.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for good


if __name__ == "__main__":
    main()
