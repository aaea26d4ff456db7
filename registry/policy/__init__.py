"""Access rules, which decide what each caller may use.

conditions       Conditions of a rule on the hints of a tool and on the arguments of a call.
rules            One rule: the callers that it concerns, the items that it covers, and its effect.
policy           The policy, and the grant of a caller: the items that the rules and the caller's scopes permit.
unmatched_rules  Find rules, patterns and conditions that can never apply to the listed items.
"""
