"""From the arguments that a caller sent to those that are forwarded.

`prepare` is the whole path: repair, defaults, check; `former_names` brings a call in an old form up to date. `repair`
defines the levels of repair; `unwrapping` takes off JSON text and wrappers, and `validation_repair` resolves one
validation error after the other, with `coercion` for single values and `spelling` for names, unless `large_calls`
sees that no repair would help. `repair_report` tells the caller what was done. `invoke_tool` first finds the tool and
the arguments in a call of the generic tool.

`problems` checks arguments and explains what is wrong with them: `diagnosis` words validation errors, and `example`
makes an example call, with `placeholders` for texts and numbers, in which `kept_values` finds what cannot stay.
"""
