"""Views: the part of the catalog that callers of one profile with the same rights see.

descriptions  Append configured texts and operators' notes to the descriptions of upstreams.
disclosure    Decide which wrappers a profile lists within its token budget, with a reason for each wrapper.
profile       Profiles: a profile selects the wrappers for one URL path, and a client dialect.
view          Build a view from the catalog, the configuration and the rights of callers.
"""
