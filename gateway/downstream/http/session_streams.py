"""The stream of a session: what it hears beside its requests, and answers that it comes back for.

Source: MCP 2025-11-25, "Transports", "Listening for Messages from the Server" and "Resumability and Redelivery".
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from gateway.access.principal import Principal
from gateway.access.quotas import Account
from gateway.downstream.http.callers import Admitted
from gateway.downstream.http.request import EVENT_STREAM, RequestHead, RequestRefused, accepts, over_quota
from gateway.downstream.http.responder import Responder
from gateway.downstream.server import McpServer
from gateway.downstream.sessions import Running, Session
from gateway.errors import QuotaExceeded

# Longer ids of events are no numbers of ours.
_MAX_EVENT_ID_DIGITS: Final = 15


class SessionStreams:
    """Answers each GET with a stream.

    Args:
        server: Says when streams have to end.
        listening: Where each is known with its caller while it is open.
    """

    def __init__(self, server: McpServer, listening: dict[Running, Principal]) -> None:
        self._server = server
        self._listening = listening

    def open(self, head: RequestHead, session: Session, admitted: Admitted, responder: Responder) -> None:
        """Open the stream of a session, or go on with an answer.

        Raises:
            RequestRefused: There is one already, or nothing to go on with.
        """
        account = admitted.account
        if not accepts(head, EVENT_STREAM):
            raise RequestRefused(406, "Accept must allow text/event-stream")
        last = head.text(b"last-event-id")
        if session.answers.names(last):
            found = session.answers.find(last)
            if found is None:
                raise RequestRefused(400, "Last-Event-ID names no answer that is still kept")
            responder.run(self._counted(account, responder, found[0].resume(responder, found[1])))
            return
        if session.streaming and not last:
            raise RequestRefused(409, "this session already has a stream")
        after = int(last) if last.isdecimal() and len(last) <= _MAX_EVENT_ID_DIGITS else None
        stream = self._stream(session, admitted.principal, after, responder)
        responder.run(self._counted(account, responder, stream))

    async def _counted(self, account: Account, responder: Responder, stream: Coroutine[Any, Any, None]) -> None:
        """Count a stream for as long as it is open, or refuse it."""
        try:
            account.open_stream()
        except QuotaExceeded as error:
            stream.close()
            responder.refuse(over_quota(error))
            return
        try:
            await stream
        finally:
            account.streams -= 1

    async def _stream(self, session: Session, principal: Principal, after: int | None, responder: Responder) -> None:
        """Carry what a session hears beside its requests, until it ends, another stream takes over, or we close."""
        emit = responder.emit
        responder.ping()  # the head goes out before there is anything to tell
        session.open_stream(emit, responder.cancel, after)
        self._listening[responder] = principal
        try:
            await self._server.closing.wait()
        except asyncio.CancelledError:
            pass  # its caller has left, or is to leave: either way the stream ends here
        finally:
            del self._listening[responder]
            session.close_stream(emit)
        responder.end()
