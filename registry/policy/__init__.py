"""Who may do what: rules, and what they leave to one caller.

`rules` are what configuration says, `conditions` what a rule asks of the arguments of a call. A `policy.Policy` picks
the rules that concern a caller, once; the result is a `grant.Grant`, which narrows what a profile shows and decides
each call whose arguments matter. `server_rules` finds the rules about one tool among thousands. `unmatched` finds what
of a rule can never apply, with `possible_values` for its conditions.
"""
