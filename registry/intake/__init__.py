"""What an upstream listed, item by item: accepted as it is, repaired, or quarantined with a reason.

`tools` and `prompts_and_resources` look at one item at a time. `repairs` mends the parts of a definition that make
hosts lose a whole list; `param_headers` checks the annotations that mirror parameters in HTTP headers.
"""
