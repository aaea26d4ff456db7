"""Access rules, which decide what each caller may use.

conditions       Conditions of a rule on the hints of a tool and on the arguments of a call.
rules            One rule: the callers that it concerns, the items that it covers, and its effect.
policy           All rules, and the grant of a caller: what the rules and scopes permit this caller to use.
unmatched_rules  Find rules, patterns and conditions that can never apply to the listed items.
"""
