"""Authenticate callers and administrators, limit what each caller uses, and sign state that travels through callers.

oauth/          Verify access tokens of callers: the gateway as a resource server (OAuth 2.1; RFC 6750, 9068, 9728).
principal       The authenticated caller, and the interface of authenticators.
signing         Encrypt and sign state that travels through callers.
administrators  Authenticate administrators: role tokens, browser sessions, one-time links, rate-limited attempts.
credentials     Authenticate an Authorization header as an API key or an access token.
quotas          Count the resources that each caller uses, and enforce the caller's limits.
"""
