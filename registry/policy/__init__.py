"""Access rules, which decide what each caller may use.

rules            One rule: the callers and items that it concerns, its conditions, and its effect.
policy           The policy, and the grant of a caller: the items that the rules and the caller's scopes permit.
unmatched_rules  Find rules, patterns and conditions that can never apply to the listed items.
"""
