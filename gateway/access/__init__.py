"""Authentication, quotas, and signed state of callers and administrators.

oauth/          Access tokens of callers: the gateway as a resource server (OAuth 2.1; RFC 6750, 9068, 9728).
principal       The authenticated caller, and the protocol of authenticators.
signing         Encrypt and sign state that travels through callers.
administrators  Authenticate administrators: role tokens, browser sessions, one-time links, rate-limited attempts.
credentials     Authenticate an Authorization header as an API key or an access token.
quotas          Count the resources that each caller uses, and enforce its limits.
"""
