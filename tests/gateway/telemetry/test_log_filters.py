"""Records of other libraries that the log leaves out."""

from __future__ import annotations

import logging

import pytest

from gateway.telemetry import logs


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [
        (RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed"), False),
        (RuntimeError("another error"), True),
        (OSError("the handler is closed"), True),
    ],
)
def test_only_late_writes_to_closed_tls_connections_are_left_out(
    error: Exception, is_logged: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.start()
    logging.getLogger("asyncio").error("Fatal error on SSL protocol", exc_info=error)
    assert ("Fatal error on SSL protocol" in capsys.readouterr().err) is is_logged
