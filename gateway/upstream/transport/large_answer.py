"""A large answer to `tools/call`: the items of its content are passed on to the caller before the rest has arrived."""

from __future__ import annotations

from functools import partial
from secrets import token_hex
from typing import Any, Final

import anyio.lowlevel

from gateway import wire
from gateway.errors import UnusableAnswer
from gateway.secrets import SECRETS, Scrubber
from gateway.upstream.transport.bounds import LARGE_BYTES, MAX_MESSAGE_BYTES
from gateway.upstream.transport.invalid_json import no_result
from gateway.upstream.transport.json_pieces import ArrayPieces, start_of
from gateway.upstream.transport.jsonrpc import ResultStream
from gateway.worker_thread import run_in_thread

# What takes longer to be read than others should wait; a piece that is larger has nothing but brackets and numbers.
_ASIDE_BYTES: Final = 256 * 1024
# Stands for the content once it has left: no server can know it.
_PLACEHOLDER: Final = token_hex(16)
_CONTENT: Final = (b"result", b"content")


class LargeAnswer:
    """Takes an answer as it arrives.

    Only a result that says nothing before its `content` which would change what the caller gets is passed on in
    pieces, and only where looking for secrets in it is quick; everything else is kept, for who reads it whole.
    """

    def __init__(self, request_id: int, results: ResultStream, *, secrets: Scrubber = SECRETS) -> None:
        """Take the answer to a request.

        Args:
            request_id: Of the request.
            results: Where its content is passed on to.
            secrets: What the result of a call that has failed must not hold.
        """
        self._secrets = secrets
        self._request_id = request_id
        self._results = results
        self._size_bytes = 0
        # What came before the content; all of it where there is none, or none that can be passed on.
        self._head: list[bytes] = []
        self._is_judged = False
        self._content: ArrayPieces | None = None
        self._broken = ""
        # Of the content, what may be the beginning of a secret, or all that came since there was one.
        self._held: list[bytes] = []
        self._holds_secret = False

    @property
    def begun(self) -> bool:
        """Whether a part of it was passed on: then the rest is its `message`."""
        return self._content is not None

    @property
    def text(self) -> bytes:
        """All of it, where nothing was passed on."""
        return b"".join(self._head)

    async def feed(self, data: bytes) -> None:
        """Take what has arrived, and pass on what can be.

        Raises:
            UnusableAnswer: It is too large.
        """
        self._size_bytes += len(data)
        if self._size_bytes > MAX_MESSAGE_BYTES:
            raise UnusableAnswer(f"the answer is larger than {MAX_MESSAGE_BYTES} bytes")
        if self._content is None:
            self._head.append(data)
            if self._is_judged or self._size_bytes < LARGE_BYTES:
                return
            self._is_judged = True
            text = self.text
            begins = self._content_in(text[:LARGE_BYTES])
            if begins is None or not self._secrets.few:
                return
            content = ArrayPieces()
            try:
                piece = content.feed(text[begins : begins + LARGE_BYTES])
            except wire.MalformedJson:
                return  # who reads it whole says what is wrong
            # Of a short content there is nothing to be passed on: what is large comes after it.
            if not piece or content.ended or not self._results.begin(self._close):
                return
            self._head, self._content = [text[:begins]], content
            await self._pass_on(piece)
            data = text[begins + LARGE_BYTES :]
        for at in range(0, len(data), LARGE_BYTES):
            if self._broken:
                return  # read to its end, so that the connection can be kept
            # Others have their turn: to look at one part of many short strings takes ten milliseconds.
            await anyio.lowlevel.checkpoint()
            try:
                piece = self._content.feed(data[at : at + LARGE_BYTES])
            except wire.MalformedJson as error:
                self._broken = _why(error)
            else:
                await self._pass_on(piece)

    async def message(self) -> dict[str, Any]:
        """The whole message, its content `PassedOn`; with an error where it is not JSON."""
        if not self._broken:
            try:
                return await self._message()
            except wire.MalformedJson as error:
                self._broken = _why(error)
            except (LookupError, TypeError):
                self._broken = "a member stands there twice"
        return no_result(self._request_id, self._broken)

    async def _message(self) -> dict[str, Any]:
        content = self._content
        assert content is not None
        if not content.ended:
            finish = content.finish
            await self._pass_on(await run_in_thread(finish) if content.kept_bytes > _ASIDE_BYTES else finish())
        text = b"".join((*self._head, b'["', _PLACEHOLDER.encode(), b'"]', *content.after))
        read = partial(wire.loads_answer, text)
        message: dict[str, Any] = await run_in_thread(read) if len(text) > _ASIDE_BYTES else read()
        result = message["result"]
        if result["content"] != [_PLACEHOLDER]:
            raise LookupError  # of two contents the second one counts
        types = {one.decode("utf-8", "replace") for one in content.types}
        result["content"] = wire.PassedOn(types, b"".join(self._held))
        return message

    def _close(self) -> bytes:
        assert self._content is not None
        held = b"".join(self._held)
        # The rest does not come, so the call has failed.
        return (self._secrets.scrub(held.decode()).encode() if self._holds_secret else held) + self._content.closing

    def _content_in(self, text: bytes) -> int | None:
        """Where the content begins of an answer that can be passed on in pieces."""
        begins = start_of(text, _CONTENT)
        if begins is None or text[begins : begins + 1] != b"[":
            return None
        try:
            message = wire.loads(text[:begins] + b"[]}}")
        except wire.MalformedJson:
            return None
        result = message["result"]
        plain = result.get("isError") is not True and result.get("resultType", "complete") == "complete"
        return begins if plain and message.get("id", self._request_id) == self._request_id else None

    async def _pass_on(self, piece: bytes) -> None:
        """Pass on what is no part of a secret.

        The result of a call that has failed holds none, and that it has failed may be said at its end.
        """
        if self._holds_secret:
            self._held.append(piece)
            return
        if self._secrets.longest_bytes or self._held:
            piece = b"".join((*self._held, piece))
            self._holds_secret = self._secrets.holds_secret(piece)
            leaves = 0 if self._holds_secret else max(0, len(piece) - self._secrets.longest_bytes)
            while leaves and _is_inside_character(piece[leaves]):
                leaves -= 1
            piece, self._held = piece[:leaves], [piece[leaves:]]
        if piece and (slow := self._results.pass_on(piece)) is not None:
            await slow


def _is_inside_character(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _why(error: wire.MalformedJson) -> str:
    # Where in a piece it was says nothing.
    return str(error).partition(" (byte")[0][:200] or "it is nested too deeply"
