"""The configuration file.

model               the whole file as pydantic models; `section` is their base
server, hooks       the entry of a server with its tools, and of a hook
upstream_types/     one file for each type of upstream, and where they are registered
include             other files that the main one is joined with
source              text to plain JSON values: JSON with comments, or YAML
variables           `${NAME}` and `${file:…}` replaced
load                all of this in order, to one checked `Config` with warnings
plan                what changes from one `Config` to another
conversion          parts of a `Config` as the types of `registry`
edit                change what the file says about one tool, and nothing else
watch               notice that a file has changed
"""
