"""What an upstream listed, item by item: accepted as it is, repaired, or quarantined with a reason.

`tools` and `prompts_and_resources` check one item at a time, and report with `issues`. `repairs` corrects the members
of a definition that make hosts reject a whole list, `schema_repairs` its schemas by `keyword_forms`, and
`param_headers` checks the annotations that mirror parameters in HTTP headers. `annotations` repairs what resources and
content items have in common, and `content` the items of results, of prompts and of contents of resources. `injection`
scores texts that try to instruct a model.
"""
