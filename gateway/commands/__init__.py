"""The commands: functions that receive the parsed arguments and return an exit code.

command_tree   The arguments of every command, importable without the commands' dependencies.
declaring      The argument parser, and options that several commands share.
add            `typegate add`: add a server from a registry, a package, a bundle or an address.
administer     `typegate admin`, `approvals`, `key`, `docs` and `completion`.
admin_client   Find the state directory and the running gateway, and call its APIs.
audit          `typegate audit` and `audit verify`.
call           `typegate call`: call a tool of a running gateway and print the result.
first_contact  Start every server of a configuration once and store its lists of tools and other items.
hosts          `typegate import`, `install` and `uninstall`.
inspect        `typegate check`, `servers`, `tools` and `hooks`.
lock           `typegate lock`, `diff` and `approve`.
login          `typegate login` and `logout`: sign in to an upstream.
output         Print results as a table, as tab-separated lines or as JSON.
configured_examples  Check the example calls of the configuration, for `typegate check`.
explain        `typegate policy explain` and `policy test`.
scorecard      `typegate scorecard`: measure overhead, token cost and start-up time.
serve          `typegate serve`, `stdio` and `demo`.
tool           `typegate tool set` and `unset`.
"""
