"""How much one message of an upstream may hold, whatever carries it."""

from __future__ import annotations

from typing import Final

# A line, an event, a body: well above what models can read, and 64 of them at once (the usual bound of calls in
# flight to one server) still fit into the memory of a small machine.
MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
# Smaller ones are there within one or two reads of a socket.
LARGE_BYTES: Final = 64 * 1024
"""From this size on the answer to a call is passed on before all of it has arrived."""
PAUSE_BYTES: Final = 512 * 1024
"""A reader that does not keep up holds this much, some socket buffers' worth; then TCP slows the sender down."""
