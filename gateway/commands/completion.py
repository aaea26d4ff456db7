"""`typegate completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

from argparse import Namespace


def completion(args: Namespace) -> int:
    """Print it."""
    import shtab

    print(shtab.complete(args.parser, shell=args.shell))
    return 0
