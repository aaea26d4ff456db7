"""The types of upstreams, one file for each.

graphql_config  Upstreams of type graphql: an endpoint, and a folder of operations that become tools.
http_config     Upstreams of the types http and sse, and the headers and credentials that other HTTP upstreams share.
openapi_config  Upstreams of type openapi: an HTTP API and the document that describes it.
registration    The registered types of upstreams, and the validation of an entry as its type.
sign_in_config  `auth` of an upstream: how the gateway signs in to it.
stdio_config    Upstreams of type stdio: a child process.
"""
