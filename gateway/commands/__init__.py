"""The commands: each is a function from parsed arguments to an exit code, imported only when it is chosen.

arguments           the arguments of all of them
serve               `serve`, `stdio` and `demo`
inspect             `check`, `servers`, `tools` and `hooks`
tool                `tool set` and `tool unset`
add                 `add`
hosts               `import`, `install` and `uninstall`
lock                `lock`, `diff` and `approve`
key                 `key new`, `key list` and `key revoke`
policy              `policy explain` and `policy test`
approvals           `approvals list`, `allow` and `deny`
audit               `audit` and `audit verify`
call                `call`
login               `login` and `logout`
admin               `admin`
scorecard           `scorecard`
completion          `completion`
first_contact       starts every server once, tells how it goes, and leaves a snapshot
admin_client        the HTTP client of those that ask a running gateway
locations           the state directory, the admin token
output              tables, lines and JSON
"""
