"""Confine this process, then execute a program: `OPTIONS... -- PROGRAM ARGUMENTS...`.

The gateway runs this file with `python -I -S` before each confined program, so the file imports only fast modules. The
program and all its child processes inherit the restrictions, and cannot remove them.

Sources: Linux, "Landlock: unprivileged access control"; landlock(7); seccomp(2); setrlimit(2).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

# System call numbers from <asm-generic/unistd.h>. They are the same on every architecture with Python, except alpha.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
# Access rights from <linux/landlock.h>. Later versions of the interface added rights; see `file_rights`.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_FIRST_RIGHTS = (1 << 13) - 1
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_RIGHTS_TO_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_SCOPE_ABSTRACT_UNIX, _SCOPE_SIGNAL = 1 << 0, 1 << 1
# From <linux/prctl.h>.
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_SECCOMP_MODE_FILTER = 2
# CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_PERFMON allow a process to read the memory of any process, and CAP_SYS_RESOURCE
# allows it to raise its limits. Only processes of root have these capabilities.
_CAPABILITIES = (19, 21, 24, 38)
# By architecture: `AUDIT_ARCH_*` from <linux/audit.h>, and the number of the system call `socket`.
_SOCKET_CALL = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
_IO_URING_SETUP = 425
# Socket families that reach other machines: AF_INET, AF_INET6, AF_PACKET, AF_VSOCK.
_DENIED_FAMILIES = (2, 10, 17, 40)
_EACCES, _ENOSYS = 13, 38
_FAILED = 126
_LIBC = ctypes.CDLL(None, use_errno=True)
_O_PATH = 0o10000000


def landlock_version() -> int:
    """Return the version of the kernel's Landlock interface; 0 if the kernel does not support Landlock."""
    return max(0, int(_LIBC.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)))


def file_rights(version: int) -> int:
    """Return all file access rights that this version of the Landlock interface can restrict."""
    later = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV))
    return _FIRST_RIGHTS | sum(right for since, right in later if version >= since)


def _check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _restrict_access(paths: dict[str, list[str]], network: str, version: int) -> None:
    """Deny access to all files except the named paths, and deny the TCP operations that `network` excludes."""
    handled = file_rights(version)
    net = 0
    if version >= 4:
        net = {"all": 0, "outbound": _BIND_TCP, "none": _BIND_TCP | _CONNECT_TCP}[network]
    scoped = _SCOPE_ABSTRACT_UNIX | _SCOPE_SIGNAL if version >= 6 else 0
    text = struct.pack("=QQQ", handled, net, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _check(_LIBC.syscall(_CREATE_RULESET, ctypes.create_string_buffer(text, 24), size, 0), "landlock")
    writes = handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
    devices = _READ_FILE | _WRITE_FILE | _IOCTL_DEV
    for key, rights in (("read", _READ), ("write", writes), ("devices", devices)):
        for path in paths[key]:
            _permit(ruleset, path, rights & handled)
    _check(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0), "landlock")
    os.close(ruleset)


def _permit(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, _O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # the path does not exist or this user cannot reach it, so a permission would have no effect
    try:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            rights &= _RIGHTS_TO_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        _check(_LIBC.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0), path)
    finally:
        os.close(descriptor)


def _forbid_sockets() -> bool:
    """Make `socket` fail for the families that reach other machines, with a seccomp filter.

    Returns:
        False, without installing a filter, if the system call numbers of this architecture are unknown.
    """
    if os.uname().machine not in _SOCKET_CALL:
        return False
    arch, call = _SOCKET_CALL[os.uname().machine]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000
    # The last instructions of the filter, by their index as jump target: 0 permits the call, 1 refuses it with EACCES,
    # and 2 answers like a kernel without this call (ENOSYS).
    ends = [(give, 0, 0, allow), (give, 0, 0, refuse | _EACCES), (give, 0, 0, refuse | _ENOSYS)]
    # (code, value, jump target, whether to jump if the comparison fails). Without a jump, the next instruction follows.
    rules: list[tuple[int, int, int | None, bool]] = [
        (load, 4, None, False),
        (equal, arch, 1, True),
        (load, 0, None, False),
    ]
    rules += [(at_least, 0x40000000, 1, False)]  # refuse the x32 system calls of x86_64, which have other numbers
    rules += [(equal, _IO_URING_SETUP, 2, False)]  # io_uring creates sockets without calling `socket`
    rules += [(equal, call, 0, True), (load, 16, None, False)]
    rules += [(equal, family, 1, False) for family in _DENIED_FAMILIES]
    lines = []
    for place, (code, value, target, is_negated) in enumerate(rules):
        jump = len(rules) - place - 1 + target if target is not None else 0
        lines.append((code, 0 if is_negated else jump, jump if is_negated else 0, value))
    lines += ends
    text = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(text, len(text))
    program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(buffer))
    _check(_LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0), "seccomp")
    return True


def _limit(limits: dict[str, int]) -> None:
    # Imported lazily, because Windows lacks this module. Nothing is limited there.
    import resource

    def set_limit(limit: int, soft: int, hard: int) -> None:
        most = resource.getrlimit(limit)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(limit, (soft, hard))

    names = {"memory": resource.RLIMIT_DATA, "tasks": resource.RLIMIT_NPROC}
    for key, limit in names.items():
        if key in limits:
            set_limit(limit, limits[key], limits[key])
    if "cpu" in limits:
        # At the soft limit the process receives SIGXCPU, and 5 s of CPU time later SIGKILL.
        set_limit(resource.RLIMIT_CPU, limits["cpu"], limits["cpu"] + 5)


def main(arguments: list[str]) -> None:
    """Confine this process and execute the program."""
    # Do not use `argparse`, because importing it takes longer than everything else in this file.
    end = arguments.index("--")
    paths: dict[str, list[str]] = {"read": [], "write": [], "devices": []}
    limits: dict[str, int] = {}
    network = "all"
    for option, value in zip(arguments[:end:2], arguments[1:end:2], strict=True):
        key = option[2:]
        if key in paths:
            paths[key].append(value)
        elif key == "network":
            network = value
        else:
            limits[key] = int(value)
    program = arguments[end + 1]
    try:
        _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        for capability in _CAPABILITIES:
            _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        _limit(limits)
        if (version := landlock_version()) > 0:
            _restrict_access(paths, network, version)
        if network == "none":
            _forbid_sockets()
    except (OSError, ValueError) as error:
        print(f"typegate: the sandbox could not be set up: {error}", file=sys.stderr)
        sys.exit(_FAILED)
    try:
        os.execv(program, arguments[end + 1 :])
    except OSError as error:
        print(f"typegate: cannot start {program}: {error.strerror}", file=sys.stderr)
        sys.exit(_FAILED)
