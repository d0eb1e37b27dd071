"""Programs: where the file of a command is, and how it is started."""

import errno
import os
import stat
import struct
import subprocess
import sys
from typing import Any, List, Optional, Tuple

# What runs files that have no format of the system: scripts without "#!".
_SHELL = "/bin/sh"
# The PATH of an environment that has none, as of execvp(3).
_DEFAULT_PATH = "/bin:/usr/bin"
# How much of a file the kernel reads to find out how it is run.
_HEAD = 256
# How many scripts may be the interpreters of each other.
_NESTED = 4


class CannotRun(Exception):
    """A command that cannot be run. ``missing`` says that a file does not exist."""

    def __init__(self, text: str, missing: bool) -> None:
        super().__init__(text)
        self.missing = missing


def find(name: str) -> str:
    """Return the file of a command as a shell finds it. An error also means that the interpreter that it names is missing."""
    path = _search(name)
    _check(path, _NESTED)
    return path


def start(argv: List[str], path: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a program, as execvp(3) does: a script that names no interpreter is run by the shell."""
    try:
        try:
            process: "subprocess.Popen[bytes]" = subprocess.Popen(argv, executable=path, **options)
        except OSError as err:
            if err.errno != errno.ENOEXEC or b"\0" in _head(path).partition(b"\n")[0]:  # that may be for another kind of machine
                raise
            try:
                process = subprocess.Popen([_SHELL, path, *argv[1:]], **options)
            except OSError:
                raise err from None
    except OSError as err:
        raise _cannot_run(argv[0], err) from err
    return process


def _cannot_run(name: str, err: OSError, why: str = "") -> CannotRun:
    return CannotRun(f"{name}: {why}{err.strerror}", isinstance(err, FileNotFoundError))


def _search(name: str) -> str:
    if "/" in name:
        err = _inexecutable(name)
        if err is not None:
            raise _cannot_run(name, err)
        return name
    denied: Optional[CannotRun] = None
    for folder in os.environ.get("PATH", _DEFAULT_PATH).split(":"):
        path = f"{folder or '.'}/{name}"
        err = _inexecutable(path)
        if err is None:
            return path
        if denied is None and os.path.exists(path) and not os.path.isdir(path):
            denied = _cannot_run(path, err)
    raise denied or CannotRun(f"{name}: there is no such command", True)


def _inexecutable(path: str) -> Optional[OSError]:
    """Return why a file cannot be executed, or None."""
    try:
        mode = os.stat(path).st_mode
    except OSError as err:
        return err
    except ValueError:  # a NUL byte
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode) or not os.access(path, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return None


def _check(path: str, nested: int) -> None:
    """Raise an error if the interpreter that a file names cannot be run. Nothing is known of a file that cannot be read."""
    name, argument = _interpreter(_head(path))
    name = name or _loader(path)
    if not name or nested == 0:
        return
    found, err = name, _inexecutable(name)
    if err is None and os.path.basename(name) == "env" and argument and argument[0] != "-" and "=" not in argument:
        name = argument
        try:
            found = _search(name)
        except CannotRun as failed:
            raise CannotRun(f"{path}: {_naming(name)}{failed}", failed.missing) from None
    if err is not None:
        raise _cannot_run(path, err, _naming(name))
    _check(found, nested - 1)


def _naming(interpreter: str) -> str:
    why = f"its interpreter {interpreter!r}: "
    return "its lines end as on Windows, and " + why if interpreter.endswith("\r") else why


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_HEAD)
    except OSError:
        return b""


def _interpreter(head: bytes) -> Tuple[str, str]:
    """Return the interpreter that the first line of a script names, and its argument: all that follows.

    They are empty if the kernel finds none in it.
    """
    if not head.startswith(b"#!"):
        return "", ""
    line, newline, _ = head[2:].partition(b"\n")
    line, end, _ = line.partition(b"\0")
    words = line.lstrip(b" \t").replace(b"\t", b" ").split(b" ", 1)
    if len(words) == 1:
        goes_on = not newline and not end and len(head) == _HEAD
        return "" if goes_on else os.fsdecode(words[0]), ""
    return os.fsdecode(words[0]), os.fsdecode(words[1].strip(b" "))


def _loader(path: str) -> str:
    """Return the loader that an ELF program for this kind of machine names, if any. An emulator may run one for another."""
    own = _head(sys.executable or "")
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if len(head) < 64 or head[:4] != b"\x7fELF" or (head[:6], head[18:20]) != (own[:6], own[18:20]):
                return ""
            order, wide = "<" if head[5] == 1 else ">", head[4] == 2
            (table,) = struct.unpack_from(order + ("Q" if wide else "I"), head, 32 if wide else 28)
            size, count = struct.unpack_from(order + "HH", head, 54 if wide else 42)
            for i in range(count):
                file.seek(table + i * size)
                kind, *rest = struct.unpack(order + ("IIQQQQ" if wide else "IIIII"), file.read(40 if wide else 20))
                offset, length = (rest[1], rest[4]) if wide else (rest[0], rest[3])
                if kind == 3 and length <= 4096:  # PT_INTERP
                    file.seek(offset)
                    return os.fsdecode(file.read(length).rstrip(b"\0"))
    except (OSError, OverflowError, ValueError, struct.error):
        pass  # it cannot be read, or is damaged
    return ""
