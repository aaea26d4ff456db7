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
# x86_64 has a second set of system calls (x32), whose numbers begin here.
_FIRST_X32_CALL = 0x40000000
# From <linux/bpf_common.h>, and the offsets in `struct seccomp_data` of <linux/seccomp.h>.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_CALL, _ARCHITECTURE, _FIRST_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 32
# Results of a filter: permit the call, or let it fail with an error (EACCES, ENOSYS, EPROTONOSUPPORT).
_ALLOW, _NO_ACCESS, _NO_CALL, _NO_PROTOCOL = 0x7FFF0000, 0x00050000 | 13, 0x00050000 | 38, 0x00050000 | 93
# Socket families that do not reach other machines: AF_UNIX, AF_NETLINK.
_LOCAL_FAMILIES = (1, 16)
# A family and protocols that use TCP ports, but are not TCP for Landlock: AF_SMC; IPPROTO_SMC and IPPROTO_MPTCP.
_FAMILY_LIKE_TCP, _PROTOCOLS_LIKE_TCP = 43, (256, 262)
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
    # Older kernels have fewer attributes, and accept more if they are 0.
    attributes = struct.pack("=QQQ", handled, net, scoped)
    ruleset = _check(_LIBC.syscall(_CREATE_RULESET, attributes, len(attributes), 0), "landlock")
    writes = handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
    devices = _READ_FILE | _WRITE_FILE | _IOCTL_DEV
    for key, rights in (("read", _READ), ("write", writes), ("devices", devices)):
        for path in paths[key]:
            _permit(ruleset, path, rights & handled)
    _check(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0), "landlock")


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


def can_filter_calls() -> bool:
    """Return whether the system call numbers of this architecture are known."""
    return os.uname().machine in _SOCKET_CALL


# One instruction: code, value, and the results of the filter if the comparison holds and if not. Without a result, the
# next instruction follows.
_Rule = tuple[int, int, int | None, int | None]


def _filter_sockets(network: str) -> None:
    """Make `socket` fail for sockets that `network` excludes and Landlock does not restrict."""
    architecture, socket_call = _SOCKET_CALL[os.uname().machine]
    rules: list[_Rule]
    if network == "none":
        rules = [
            (_LOAD, _ARCHITECTURE, None, None),
            (_IF_EQUAL, architecture, None, _NO_ACCESS),
            (_LOAD, _CALL, None, None),
            (_IF_AT_LEAST, _FIRST_X32_CALL, _NO_ACCESS, None),
            # io_uring creates sockets without calling `socket`.
            (_IF_EQUAL, _IO_URING_SETUP, _NO_CALL, None),
            (_IF_EQUAL, socket_call, None, _ALLOW),
            (_LOAD, _FIRST_ARGUMENT, None, None),
            *((_IF_EQUAL, family, _ALLOW, None) for family in _LOCAL_FAMILIES),
        ]
        _install_filter(rules, otherwise=_NO_ACCESS)
    else:
        # Programs that prefer another protocol use TCP if the kernel does not have the protocol.
        rules = [
            (_LOAD, _ARCHITECTURE, None, None),
            (_IF_EQUAL, architecture, None, _ALLOW),
            (_LOAD, _CALL, None, None),
            (_IF_EQUAL, socket_call, None, _ALLOW),
            (_LOAD, _FIRST_ARGUMENT, None, None),
            (_IF_EQUAL, _FAMILY_LIKE_TCP, _NO_PROTOCOL, None),
            (_LOAD, _THIRD_ARGUMENT, None, None),
            *((_IF_EQUAL, protocol, _NO_PROTOCOL, None) for protocol in _PROTOCOLS_LIKE_TCP),
        ]
        _install_filter(rules, otherwise=_ALLOW)


def _install_filter(rules: list[_Rule], otherwise: int) -> None:
    """Install a seccomp filter, which has the result `otherwise` if no rule has a result."""
    results = [otherwise, *{result for rule in rules for result in rule[2:] if result not in (None, otherwise)}]
    text = b""
    for place, (code, value, *outcomes) in enumerate(rules, 1):
        # A jump skips a number of instructions. The instructions that return a result follow the rules.
        jumps = [0 if result is None else len(rules) - place + results.index(result) for result in outcomes]
        text += struct.pack("HBBI", code, *jumps, value)
    text += b"".join(struct.pack("HxxI", _RETURN, result) for result in results)
    buffer = ctypes.create_string_buffer(text, len(text))
    program = struct.pack("HxxxxxxP", len(rules) + len(results), ctypes.addressof(buffer))
    _check(_LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program), "seccomp")


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
            _LIBC.prctl(_PR_CAPBSET_DROP, capability)
        _limit(limits)
        if version := landlock_version():
            _restrict_access(paths, network, version)
        # The filter for `outbound` only extends what Landlock restricts since version 4 to protocols like TCP.
        if (network == "none" or (network == "outbound" and version >= 4)) and can_filter_calls():
            _filter_sockets(network)
    except (OSError, ValueError) as error:
        print(f"typegate: the sandbox could not be set up: {error}", file=sys.stderr)
        sys.exit(_FAILED)
    try:
        os.execv(program, arguments[end + 1 :])
    except OSError as error:
        print(f"typegate: cannot start {program}: {error.strerror}", file=sys.stderr)
        sys.exit(_FAILED)
