"""The command line: one subcommand a file in `commands/`."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from sidecar import __version__

COMMANDS = ("serve", "check", "demo", "emulate", "reference")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `sidecar` command; returns its exit code (2 for a wrong command line or configuration)."""
    parser = argparse.ArgumentParser(
        prog="sidecar", description="Measures what LLM clients live through, in front of an inference server."
    )
    parser.add_argument("--version", action="version", version=f"sidecar {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    argv = sys.argv[1:] if argv is None else argv
    for name in [argv[0]] if argv and argv[0] in COMMANDS else COMMANDS:  # only what runs is imported
        module = importlib.import_module(f"sidecar.commands.{name}")
        subparser = subparsers.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
