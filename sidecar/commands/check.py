"""`sidecar check`: is the configuration right? Nothing is started, nothing is connected to."""

import argparse
import sys

from sidecar.config import ConfigError, load

HELP = "check a configuration file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `serve` that are settings, so that what is going to run can be checked."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="the configuration file")
    parser.add_argument("--config", metavar="FILE", help="the same, as `serve` takes it")
    parser.add_argument("--upstream", metavar="URL")
    parser.add_argument("--listen", metavar="HOST:PORT")
    parser.add_argument("--admin", metavar="HOST:PORT")


def run(args: argparse.Namespace) -> int:
    """0, or 2 with every mistake on a line of standard error."""
    flags = {name: getattr(args, name) for name in ("upstream", "listen", "admin")}
    file = args.file or args.config
    try:
        load(file, {name: value for name, value in flags.items() if value is not None})
    except ConfigError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    print(f"{file or 'flags and environment'}: ok")
    return 0
