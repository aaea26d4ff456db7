"""Every tool, prompt and resource that the gateway exposes, as one immutable value.

catalog       The immutable catalog of all wrappers, and the difference between two catalogs.
listing       The items that one server listed on one connection, their suspicious texts, and unmatched configuration.
drift         Names and parameters from earlier catalogs, for callers that still use them.
shape         Configuration and operators' notes about servers and their tools.
overrides     Apply a tool's configuration to the definition and the hints that its upstream gives.
names         Derive wrapper names that are valid for hosts, short, and distinct.
listed_items  Prompts, resources and resource templates of every server, and the owners of their names and URIs.
registry      Build catalogs from listings, and hold the current one: the only mutable object of the package.
uris          Equivalent spellings of URIs for access rules, and qualified URIs (with the server's alias).
"""
