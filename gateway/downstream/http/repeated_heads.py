"""What one connection does about heads that repeat: it finds them, waits for their bodies, and learns them."""

from __future__ import annotations

from gateway.downstream.http.known_heads import HEAD_END, MAX_KNOWN_BYTES, KnownHead, KnownHeads
from gateway.downstream.http.request import RequestHead


class RepeatedHeads:
    """Those of one connection.

    Attributes:
        ahead: A known head whose body has not begun to arrive. Many clients write the two apart, and read together they
            are known like any.
    """

    __slots__ = ("_begun", "_known", "_latest", "_new", "ahead")

    def __init__(self, known: KnownHeads) -> None:
        """Know what the whole server knows."""
        self._known = known
        # The next request often has the head of the latest one.
        self._latest: KnownHead | None = None
        # How the request that is being read began, and its head.
        self._begun = b""
        self._new: RequestHead | None = None
        self.ahead = b""

    def keep(self, data: bytes) -> bool:
        """Keep the first bytes of a request as `ahead`, if they are a known head and nothing else."""
        if not data.endswith(HEAD_END):
            return False
        latest = self._latest
        if latest is None or not latest.is_all_of(data):
            latest = self._known.find_alone(data)
            if latest is None:
                return False
            self._latest = latest
        self.ahead = data
        return True

    def find(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """The head and the body of a request; None where it is not one whole request alone, or its head is not known.

        Args:
            data: What has arrived since the end of the request before.
        """
        latest = self._latest
        if latest is not None and (body := latest.body_in(data)) is not None:
            return latest.head, body
        found = self._known.find(data)
        if found is None:
            return None
        self._latest, body = found
        return self._latest.head, body

    def begin(self, data: bytes) -> None:
        """Note how a request begins that is about to be read."""
        self._begun, self._new = data[:MAX_KNOWN_BYTES], None

    def head_arrived(self, head: RequestHead) -> None:
        """Note the head that was read."""
        # What follows in the same packet has another one.
        if self._begun and self._new is None:
            self._new = head

    def arrived(self, head: RequestHead, *, accepted: bool) -> None:
        """Learn the head of a request that is there as a whole, if it is the one that was begun and was accepted."""
        if accepted and self._begun and head is self._new:
            self._known.learn(self._begun, head)
        self._begun = b""
