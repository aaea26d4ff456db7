"""The catalog as one profile shows it.

descriptions  Append configured texts and operators' notes to an upstream's descriptions.
disclosure    Plan which wrappers a profile lists within its token budget, with a reason for each.
profile       Profiles: the part of the catalog that one URL path shows, and its dialect.
view          The catalog as one profile shows it; a pure function of catalog and configuration.
"""
