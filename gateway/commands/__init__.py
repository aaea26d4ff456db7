"""The commands: each is a function from parsed arguments to an exit code, imported only when it is chosen.

serve               `serve`, `stdio` and `demo`
inspect             `check`, `servers`, `tools` and `hooks`
tool                `tool set` and `tool unset`
call                `call`
admin_client        the HTTP client of the last three
locations           the state directory, the admin token
output              tables, lines and JSON
"""
