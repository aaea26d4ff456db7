"""Verify access tokens of callers: the gateway as a resource server (OAuth 2.1; RFC 6750, 9068, 9728).

claims         Parse signed tokens, and map their claims to a principal or a refusal.
key_set        Fetch an issuer's metadata and keys (RFC 8414, RFC 7517), and refresh the keys.
access_tokens  Verify access tokens, and cache the results until the tokens expire.
"""
