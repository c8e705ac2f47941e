"""Entry point of the `ringfence` command, which names a missing package and how to install it."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the `ringfence` command line."""
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
    run()


if __name__ == "__main__":
    main()
