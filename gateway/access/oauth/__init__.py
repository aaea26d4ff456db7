"""Access tokens of callers: this gateway as a resource server (OAuth 2.1; RFC 6750, 9068, 9728).

    claims          what a token says becomes a principal, or a refusal
    signatures      a signed token (JWT) and the key that its issuer signed it with
    key_set         the keys of one issuer: fetched, rotated, kept through an outage
    introspection   opaque tokens, which the issuer is asked about (RFC 7662)
    documents       what an issuer publishes, within bounds
    tokens          what is known of each token, until it ends
    identity_tokens who a person at a browser is, as the issuer tells us, its client

The first look at a token may have to wait for its issuer; each further one is a look into a dictionary.
"""
