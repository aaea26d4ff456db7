"""Log the standard error of a child process, and find the line that explains why the process ended.

"Frames" are the lines of a stack trace that name functions. "Noise" is standard output that is not JSON-RPC. The
pattern `_NOISE` has another meaning: it matches lines of any output that never state an error.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gateway.upstream.transport.process_start import PrintedLine
from registry.schema.display_text import excerpt

log = logging.getLogger(__name__)

# The length limit of a processed line. Longer lines usually contain data that is not meant for people.
STDERR_LINE_BYTES: Final = 2000
# At most this many lines are logged per second. The limit is large enough for a whole traceback.
_LINES_PER_S: Final = 50
# How many lines are searched for the reason why a process ended. The lines have to include the reason, the stack trace
# and advice below the trace. After the reason, Node prints all members of an error, which may take 100 lines or more.
_LAST_LINES: Final = 300
# How many lines administrators can read: about four screens, and at most 400 kB for each server.
_RECENT_LINES: Final = 200
# How much of a line a connection error quotes. The error has to be short, because it is shown in a table and to models.
MAX_QUOTED_CHARS: Final = 300
# How much of a line is searched for reasons. The limit is needed because the regular expressions take quadratic time.
_MAX_SEARCHED_CHARS: Final = 500
# The longest timestamp and log level before a message.
_LABEL_CHARS: Final = 80
# A process that ends within a minute has failed at startup, and the next process will probably print the same lines.
_FAILING_S: Final = 60.0
# How many distinct lines of a failed start to remember. A program that prints more lines is logging its normal work.
_MAX_REMEMBERED: Final = 500

# How many lines of noise are logged for each process. A few lines show what a server prints to standard output.
_LOGGED_NOISES: Final = 3
# How many lines of noise are stored: enough for a banner or a usage text, and for the reason below the text.
_KEPT_NOISES: Final = 40

_ESCAPE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
# The bars that Python draws beside the exceptions of an exception group.
_GROUP_BAR: Final = re.compile(r"^\s*[|+](?:[\s|+-]|\d+(?= -))*")
# The box that the library rich draws around messages and tracebacks.
_BOX: Final = re.compile(r"\s*(?:│(?P<inside>.*)│|[╭┌][─━]*(?P<title>[^─━]*)[─━]*[╮┐]|[╰└][─━]+[╯┘])\s*")
# Words with digits, such as times, process ids, ports and names of temporary files. These words differ between runs.
# Matching only at the start of a word avoids quadratic time for long words.
_VARYING: Final = re.compile(r"(?<!\w)\w*\d\w*")

# Lines that never state the reason: notices, warnings, advice, and the progress of package managers.
_NOISE: Final = re.compile(
    r"""\s*(?:
      npm\s(?:notice|warn)\b.*
    | npm\s(?:error|ERR!)\s*(?:\d{3}|notarget)?\s*
      (?:A\ complete\ log.*|\S*_logs\S*|(?:code|errno|syscall|path|dest|command|signal|fetch|requested|cwd|stack)\s.*
        |Note\ that\ you\ can.*|tarball,\ folder.*|In\ most\ cases.*|Lifecycle\ script\s.*|(?:workspace|location)\s.*
        |gyp\s(?:info|verb|http)\b.*)?
    | \[notice\].* | DEPRECATION:.* | WARNING:.*
    | \(node:\d+\)\s.* | \(Use\ `.*
    | (?:\S+:\d+:\s)?\w*Warning:.*
    | [\d\-:.,TZ/+\s\[\]|]*\[?(?:WARN|WARNING|warn|warning)\]?[\s:|-].*
    | (?:Download(?:ing|ed)|Prepared|Resolved|(?:Uni|I)nstalled|Audited|Building|Built|Updat(?:ing|ed)|Creating)\s.*
    | (?:hint|help|note|Hint|Help|Note)[:\s].* | See\ '.*--help'.* | If\ you\ believe\ this.*
    | Unable\ to\ find\ image\ .*\ locally | [0-9a-f]{12}:\s.* | (?:Digest|Status):\s.* | \S+:\sPulling\ from\s.*
    | During\ handling\ of\ the\ above.* | The\ above\ exception\ was.*
    | (?:Base)?ExceptionGroup:.* | SystemExit:\s*\d* | KeyboardInterrupt | exit\ status\ \d+ | goroutine\s\d+\s.*
    )""",
    re.VERBOSE,
)
# Lines around the reason: frames, brackets and members of objects. These lines are quoted only as a last resort.
_SURROUNDINGS: Final = re.compile(
    r"""\s*(?:
      at\s.* | Node\.js\sv\S+ | File\s".*",\sline\s\d+.* | \.\.\.\s\d+\smore
    | Traceback(?:\s\(most\srecent\scall\slast\):)? | (?:Exception\sGroup\s)?Traceback\s.*
    | (?:node:|file://|/|[A-Za-z]:\\|\[eval\])\S*:\d+ | \S+\.go:\d+.* | main\.\S+\(.*\)
    | (?:code|errno|syscall|path|requireStack|dest|address|port|spawnargs|\[?cause\]?):\s.*
    | (?:CategoryInfo|FullyQualifiedErrorId)\s*:.* | (?<=\s)-{1,2}\w[\w-]*(?:[\s,=<\[].*)?
    | error:\ (?:subprocess-exited-with-error|metadata-generation-failed|failed-wheel-build-for-install)
    | Task\ exception\ was\ never\ retrieved | future:\ <.* | Unclosed\ (?:client\ session|connector)
    | (?:client_session|connector|connections):\s.*
    )""",
    re.VERBOSE,
)
_QUOTES_SOURCE: Final = re.compile(r"Traceback |\s+File \".*\", line \d+|\S+:\d+: \w*Warning: ")
_BRACKETS: Final = re.compile(r"\s*[{}\[\]()]+[,;]?\s*")
_CARETS: Final = re.compile(r"\s*[\^~]+\s*")
_NPM_ERROR: Final = re.compile(r"\s*npm (?:error|ERR!)\s")
_INFORMAL: Final = re.compile(r"[\W\d]*(?:\d[\w:.,+-]*[\s|\]]+)?\W*(?:INFO|DEBUG|TRACE|info|debug|trace)\b")
_NAMED_ERROR: Final = re.compile(r"(?:[\w$]+\.)*\w*(?:Error|Exception|Failure|Panic|Exit)\b(?::|\s\[|$)")
_ERROR: Final = re.compile(r"\b(?:error|fatal|panic(?:ked)?|critical|exception|err!)\b|\w(?:Error|Exception)\b", re.I)
_TROUBLE: Final = re.compile(
    r"not found|no such|cannot|can't|could not|couldn't|unable to|fail(?:ed|ure|s)?\b|missing|required?\b|must\b|denied"
    r"|refused|invalid|unknown|unauthorized|not (?:set|provided|installed|supported|allowed)|\b(?-i:E[A-Z]{4,})\b",
    re.I,
)
# The start of a multi-line message: a heading, a JSON array of issues (zod), or a list of fields (pydantic).
_UNFINISHED: Final = re.compile(r"[:\[,]$|\[ \{$|\d validation errors? for [\w.\[\]]+(?: [\w.]+)?$")
_GOES_ON: Final = re.compile(r"\s+(?:cause:|\[cause\]:|caused by:|╰─▶|├─▶)\s*", re.I)
# The list of causes that Rust programs print below an error.
_CAUSES: Final = re.compile(r"Caused by:")
_NUMBERED: Final = re.compile(r"\s+(?:\d+: )?")
# The line above the members of a Node error. It is a frame or the message, and ends with an opening brace.
_OPENS_MEMBERS: Final = re.compile(r"\s*at\s|(?!\s).*(?:Error|Exception)\b.*[^:]\s\{")
_IGNORED: Final = "Exception ignored"


def clean_line(line: bytes) -> str:
    """Decode a line without the characters that could move the terminal cursor or imitate another log line."""
    text = _ESCAPE.sub("", line.decode("utf-8", "replace")).rstrip()
    # A progress bar overwrites itself, so only the text after the last carriage return is visible.
    text = text.rpartition("\r")[2]
    return "".join(character if character.isprintable() or character == "\t" else "?" for character in text)


def explanation(lines: Sequence[str]) -> str:
    """Return the line that explains why a program failed, or an empty string if there is none.

    Errors are preferred to other lines. If there are several errors, return the last, which usually ended the program.
    Never return a notice, a warning or a progress line. Return a frame only as a last resort.
    """
    candidates: list[str] = []
    surroundings = ""
    after_npm_error = in_causes = False
    for line in _without_members(_without_code(_without_frames(lines))):
        if not line.strip() or _NOISE.fullmatch(line):
            continue
        is_of_npm = _NPM_ERROR.match(line) is not None
        if is_of_npm and after_npm_error:
            continue  # npm prints the error first, and then many lines of context
        after_npm_error = is_of_npm
        in_causes = bool(candidates) and (
            _CAUSES.fullmatch(line) is not None or (in_causes and _NUMBERED.match(line) is not None)
        )
        if in_causes:
            _continue_last(candidates, "" if _CAUSES.fullmatch(line) else _NUMBERED.sub("", line, count=1))
        elif _GOES_ON.match(line) and candidates:
            _continue_last(candidates, _GOES_ON.sub("", line, count=1))
        elif _SURROUNDINGS.fullmatch(line) and not _BRACKETS.fullmatch(line):
            surroundings = line
        elif candidates and _UNFINISHED.search(candidates[-1]) and len(candidates[-1]) < MAX_QUOTED_CHARS:
            candidates[-1] = f"{candidates[-1]} {line.strip()}"
        elif not _BRACKETS.fullmatch(line):
            candidates.append(line.strip().removesuffix(" {"))
    for is_explanation in (_is_error, _is_trouble):
        if explaining := [line for line in candidates if is_explanation(line)]:
            return explaining[-1]
    return candidates[-1] if candidates else surroundings.strip()


def _continue_last(candidates: list[str], text: str) -> None:
    """Append a cause to the last candidate."""
    if text:
        candidates[-1] = f"{candidates[-1].rstrip(': ')}: {text.strip().removesuffix(' {')}"


def _without_frames(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines without the boxes and bars drawn around them."""
    for line in (line[:_MAX_SEARCHED_CHARS] for line in lines):
        if box := _BOX.fullmatch(line):
            title = (box["title"] or "").strip()
            yield f"{title}:" if title else (box["inside"] or "").strip()
        else:
            yield _GROUP_BAR.sub("", line) if line.lstrip()[:1] in ("|", "+") else line


def _without_code(lines: Iterable[str]) -> list[str]:
    """Remove quoted source code, which is above carets or below the frames and warnings of Python.

    The exceptions that Python reports as ignored are also removed.
    """
    remaining: list[str] = []
    in_traceback = is_ignored = False
    for line in lines:
        if _CARETS.fullmatch(line) and line.strip():
            if remaining and not _is_error(remaining[-1]):
                remaining.pop()
            continue
        if line.startswith(_IGNORED):
            is_ignored = True
            continue
        if _QUOTES_SOURCE.match(line):
            in_traceback = True
        elif in_traceback and line[:1] == " ":
            continue
        else:
            was_ignored, is_ignored, in_traceback = is_ignored and in_traceback, False, False
            if was_ignored:
                continue
        if not is_ignored:
            remaining.append(line)
    return remaining


def _without_members(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines without the members of Node errors, except for members that are errors themselves."""
    in_members = False
    for line in lines:
        if in_members and line[:1] in (" ", "}"):
            in_members = line[:1] != "}"
            is_nested = _NAMED_ERROR.match(line.strip()) is not None
            if _GOES_ON.match(line) or is_nested:
                yield line
            continue
        in_members = line.endswith("{") and _OPENS_MEMBERS.match(line) is not None
        yield line


def reports_error(line: str) -> bool:
    """Return whether a line reports that something went wrong."""
    return _is_error(line) or _is_trouble(line)


def _is_error(line: str) -> bool:
    if _INFORMAL.match(line[:_LABEL_CHARS]):
        return False
    return _NAMED_ERROR.match(line) is not None or (_ERROR.search(line) is not None and not line.startswith("throw "))


def _is_trouble(line: str) -> bool:
    return _TROUBLE.search(line) is not None and not _INFORMAL.match(line[:_LABEL_CHARS])


class StderrLog:
    """Copies the standard error of one server's successive processes to the gateway's log.

    Lines are labelled, truncated and rate-limited. If successive processes fail at startup with the same lines, these
    lines are logged only once.

    Attributes:
        denials: The accesses that sandboxes denied, found in standard error; see `gateway.upstream.sandbox`.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._second = 0
        self._count = 0
        self._dropped = 0
        self._began_s = 0.0
        self._has_failed = False
        self._noises = 0
        self._first_noise = b""
        self._last_noises: deque[bytes] = deque(maxlen=_KEPT_NOISES)
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)
        # `reset` does not clear these lines, so that an administrator can read why the previous process ended.
        self._recent: deque[tuple[float, bytes]] = deque(maxlen=_RECENT_LINES)
        self.denials: dict[str, None] = {}
        self._printed: set[str] = set()
        self._printed_before: set[str] = set()

    def reset(self) -> None:
        """Reset the state for a new process."""
        self._printed_before = self._printed if self._has_failed else set()
        self._printed, self._began_s = set(), asyncio.get_running_loop().time()
        self._last.clear()
        self._last_noises.clear()
        self._noises, self._first_noise = 0, b""

    def add_noise(self, line: bytes) -> None:
        """Record a line of standard output that is not a JSON-RPC message."""
        self._noises += 1
        self._first_noise = self._first_noise or line[:STDERR_LINE_BYTES]
        self._last_noises.append(line[:STDERR_LINE_BYTES])
        if self._noises <= _LOGGED_NOISES:
            clean = excerpt(clean_line(line[:STDERR_LINE_BYTES]), MAX_QUOTED_CHARS)
            if not self._was_printed(clean):
                text = "not a JSON-RPC message, ignored: %s"
                log.warning(text, clean, extra={"server": self._server})

    def add(self, line: bytes) -> None:
        """Record the next line of standard error."""
        self._last.append(line)
        self._recent.append((time.time(), line))
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self.close()
            self._second, self._count = second, 0
        if self._count >= _LINES_PER_S:
            # Drop the line without decoding, because a server may print thousands of long lines per second.
            self._dropped += 1
            return
        clean = clean_line(line)
        if self._was_printed(clean):
            return
        self._count += 1
        if clean:
            log.info("stderr: %s", clean, extra={"server": self._server})

    def _was_printed(self, line: str) -> bool:
        """Return whether the previous process printed this line, and remember the line for the next process."""
        normalized = _VARYING.sub("#", line)
        if len(self._printed) < _MAX_REMEMBERED:
            self._printed.add(normalized)
        return normalized in self._printed_before

    def last_line(self) -> str:
        """Return the last line that is not empty."""
        lines = (clean_line(line).strip() for line in reversed(self._last))
        return excerpt(next((line for line in lines if line), ""), MAX_QUOTED_CHARS)

    def recent_lines(self) -> list[PrintedLine]:
        """Return the last lines of standard error of this and earlier processes, oldest first."""
        return [PrintedLine(round(at_s, 3), clean_line(line)) for at_s, line in self._recent]

    def explanation(self) -> str:
        """Return the line that explains why the process ended, or an empty string if there is none."""
        return excerpt(explanation([clean_line(line) for line in self._last]), MAX_QUOTED_CHARS)

    def noise(self, unfinished: bytes = b"") -> str:
        """Return the first line of standard output that is not a JSON-RPC message, or an empty string.

        Args:
            unfinished: The incomplete last line of standard output.
        """
        first = self._first_noise or unfinished
        return excerpt(clean_line(first[:STDERR_LINE_BYTES]), MAX_QUOTED_CHARS)

    def error_in_noise(self, unfinished: bytes = b"") -> str:
        """Return the line of standard output that reports an error, or an empty string if there is none.

        Args:
            unfinished: The incomplete last line of standard output.
        """
        reason = explanation([clean_line(line) for line in (*self._last_noises, unfinished[:STDERR_LINE_BYTES])])
        return excerpt(reason, MAX_QUOTED_CHARS) if reports_error(reason) else ""

    def end(self, *, failed: bool) -> None:
        """Record the end of the process.

        Args:
            failed: Whether the process ended before it responded to the handshake.
        """
        self._has_failed = failed or asyncio.get_running_loop().time() - self._began_s < _FAILING_S
        self.close()

    def close(self) -> None:
        """Log how many lines were dropped, if any, and reset the counter."""
        if self._dropped:
            log.info("stderr: %d lines dropped", self._dropped, extra={"server": self._server})
            self._dropped = 0
