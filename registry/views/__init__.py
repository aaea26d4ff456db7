"""Views. A view is the part of the catalog that callers with the same profile and the same rights see.

descriptions  Append configured texts and operators' notes to the descriptions of upstreams.
disclosure    Decide which wrappers a profile lists within its token budget, with a reason for each wrapper.
profile       Profiles. A profile selects the wrappers for one URL path, and the dialect of JSON Schema for its clients.
view          Build a view from the catalog, the configuration and the rights of callers.
"""
