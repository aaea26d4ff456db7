"""Access rules: what each caller may use.

conditions       Conditions of rules on the arguments of a call.
rules            One rule: the callers it concerns, the items it covers, and its effect.
policy           All rules, and the grant that they give to one caller.
unmatched_rules  Find rules, patterns and conditions that can never apply to the listed items.
"""
