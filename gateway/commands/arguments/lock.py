"""The arguments of `typegate lock`, `diff` and `approve`."""

from __future__ import annotations

from typing import Final

from gateway.commands.arguments import options
from gateway.commands.arguments.declaring import Commands

_LOCK: Final = """\
Write what every server lists now into typegate.lock, as approved.
With --config it connects to the servers itself, without it asks the running gateway. Where there is a lock file,
tools that were added, or whose description, power or package has changed, are held until somebody approves them.

examples:
  typegate lock --config mcp.json
  typegate check --config mcp.json --frozen        exit code 3 if something has changed: for CI
"""

_DIFF: Final = """\
What servers list otherwise than it was approved, by class: added, removed, renamed, text, narrowing, widening,
identity.

examples:
  typegate diff
  typegate diff --config mcp.json --json | jq '.changes[] | .wrapper'
"""

_APPROVE: Final = """\
Approve what a server lists now: it is shown and written into the lock file, and what was held can be used.

examples:
  typegate approve bank
  typegate approve bank__wire_money --config mcp.json
  typegate approve bank --class narrowing --class text
  typegate approve bank__wire_money --digest 5f0c3a9be1d27740       as `typegate diff` has shown it, or not at all
"""

# As in `registry.lock.changes`, which a command line that does something else need not import.
_CLASSES: Final = ("added", "removed", "renamed", "text", "narrowing", "widening", "identity")


def add_lock_commands(commands: Commands) -> None:
    """Declare the commands."""
    lock = commands.add("lock", _LOCK, "lock:lock")
    diff = commands.add("diff", _DIFF, "lock:diff")
    diff.add_argument("server", nargs="?", metavar="SERVER", help="only what this server has changed")
    approve = commands.add("approve", _APPROVE, "lock:approve")
    approve.add_argument("name", metavar="SERVER[__TOOL]", help="a server, or one of its tools, prompts or templates")
    about = "only changes of this class and of no other that is not named; may be repeated"
    approve.add_argument("--class", dest="classes", action="append", choices=_CLASSES, metavar="CLASS", help=about)
    about = "the digest of a change that `typegate diff` has shown: nothing else is approved; may be repeated"
    approve.add_argument("--digest", dest="digests", action="append", metavar="DIGEST", help=about)
    for each in (lock, diff, approve):
        options.config(each)
        options.running(each)
        each.add_argument("--json", action="store_true", help="print JSON")
