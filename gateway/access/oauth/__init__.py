"""Access tokens of callers: the gateway as a resource server (OAuth 2.1; RFC 6750, 9068, 9728).

claims         Verify signed tokens, and map their claims to a principal or a refusal.
key_set        Fetch and rotate the metadata and keys of an issuer (RFC 8414, RFC 7517).
access_tokens  Verify access tokens, and cache the results until the tokens expire.
"""
