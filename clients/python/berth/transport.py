"""Requests to a sidecar: its address, the settings, and one exchange over HTTP."""

import errno
import http.client
import ipaddress
import json
import os
import socket
import ssl
import stat
import struct
import sys
import threading
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Union
from urllib.parse import urlsplit

from .errors import BerthError, Unavailable, error_of, invalid, stranger

DEFAULT_SIDECAR = "http://127.0.0.1:7420"
_CONNECT_TIMEOUT = 5.0
# A peer that is gone without a word is noticed after about two minutes of a wait.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 30, "TCP_KEEPCNT": 3}
# The longest path of a socket, in bytes: the systems have room for so many, and an end.
_MAX_PATH = 107 if sys.platform == "linux" else 103
_MAX_ANSWER, _PIECE = 64 << 20, 64 << 10
_MAX_INTERIM = 32
# What to do about a certificate, by the error of its verification: that it has expired, or is for another name or address.
_HINTS = {10: "renew its certificate", 62: "use a name that is in its certificate", 64: "use an address that is in its certificate"}


class Settings(NamedTuple):
    """Where a sidecar is, and what to show it."""

    sidecar: str
    token: str
    cacert: str
    cert: str
    key: str
    insecure: bool = False


def _local(host: str) -> bool:
    """Report whether a host of a URL is this one: what is sent to it leaves no machine."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _is_host(host: str) -> bool:
    """Report whether a name can be resolved at all."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return host != "" and host.isprintable() and " " not in host


def settings(
    sidecar: Optional[str] = None,
    token: Optional[str] = None,
    cacert: Optional[str] = None,
    cert: Optional[str] = None,
    key: Optional[str] = None,
    insecure: Optional[bool] = None,
) -> Settings:
    """Return the given settings; those that are None are the variables of ``berth``.

    An empty variable counts as not set. Settings files (``BERTH_CONFIG``) are not read.
    """

    def value(given: Optional[str], variable: str) -> str:
        return os.environ.get(variable, "") if given is None else given

    if token is None:
        token = os.environ.get("BERTH_TOKEN", "")
        path = os.environ.get("BERTH_TOKEN_FILE", "")
        if path and not token:
            token = _secret(path)
    if token and not (16 <= len(token) <= 256 and token.isascii() and token.isprintable() and " " not in token):
        raise invalid("token", "it must be 16 to 256 visible ASCII characters")
    s = Settings(
        value(sidecar, "BERTH_SIDECAR") or DEFAULT_SIDECAR,
        token,
        value(cacert, "BERTH_SIDECAR_CACERT"),
        value(cert, "BERTH_SIDECAR_CERT"),
        value(key, "BERTH_SIDECAR_KEY"),
        _switch("insecure", value(None, "BERTH_INSECURE")) if insecure is None else insecure,
    )
    if bool(s.cert) != bool(s.key):
        raise invalid("sidecar_cert", "it needs sidecar_key, and sidecar_key needs it")
    if (s.cacert or s.cert) and not s.sidecar.startswith("https://"):
        raise invalid("sidecar_cacert", "it applies to https:// only, as do sidecar_cert and sidecar_key")
    return s


def _switch(name: str, text: str) -> bool:
    if text not in ("", "true", "false"):
        raise invalid(name, f"{text!r} is not true or false")
    return text == "true"


def _secret(path: str) -> str:
    try:
        mode = os.stat(path).st_mode
        with open(path, encoding="utf-8-sig") as file:
            secret = file.read().strip()
    except (OSError, UnicodeError) as err:
        raise invalid("token_file", f"{path} can't be read: {err}") from err
    if mode & 0o006 and os.name == "posix":
        raise invalid(
            "token_file",
            f"{path} holds a secret, and all users may read or change it (mode {stat.S_IMODE(mode):04o}): run chmod o-rwx {path}",
        )
    return secret


class Interrupt:
    """Ends requests from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sock: Optional[socket.socket] = None
        self._called = threading.Event()

    def __call__(self) -> None:
        """End the request that is under way, and all later ones."""
        with self._lock:
            self._called.set()
            if self._sock is not None:
                shut(self._sock)

    def watch(self, sock: socket.socket) -> None:
        """Name the connection of the request that is under way."""
        with self._lock:
            self._sock = sock
        self.check()

    def done(self) -> None:
        """Forget the connection, before it is closed."""
        with self._lock:
            self._sock = None

    def check(self) -> None:
        """Raise if requests were ended."""
        if self._called.is_set():
            raise Interrupted()

    def wait(self, duration: float) -> None:
        """Wait for so many seconds, or until requests are ended."""
        self._called.wait(duration)

    def sleep(self, duration: float) -> None:
        """Wait between two requests, and raise if they are ended."""
        self.wait(duration)
        self.check()


def shut(sock: socket.socket) -> None:
    """End a connection, also if a forked process has it, too."""
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, whose state belongs to one thread
    except OSError:
        pass  # it has ended


class Interrupted(Exception):
    """An interrupt has ended the request."""


class _Response(http.client.HTTPResponse):
    """An answer. Interim ones before it, such as 103 Early Hints of a proxy, are skipped."""

    def begin(self) -> None:
        super().begin()
        for _ in range(_MAX_INTERIM):
            if not 102 <= self.status < 200:  # http.client skips 100, and 101 is the answer
                break
            self.headers = self.msg = None  # type: ignore[assignment]
            super().begin()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self._path)
        except BaseException:
            sock.close()
            raise
        self.sock = sock


class Answer(NamedTuple):
    """An answer that is no error."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    sidecar: str

    def json(self, **fields: type) -> Any:
        """Return the object in the body, which has these fields of these types. What has not was not sent by a sidecar."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError) as err:
            raise stranger(self.sidecar, self.status, self.body) from err
        if not isinstance(value, dict) or any(not isinstance(value.get(f), kind) for f, kind in fields.items()):
            raise stranger(self.sidecar, self.status, self.body)
        return value


def _read(response: http.client.HTTPResponse) -> bytes:
    """Return the body of an answer. Before Python 3.10 each read allocates as much as it may return."""
    unmeasured = response.length is None and not response.chunked
    parts, left = [], _MAX_ANSWER
    while left > 0:
        part = response.read(min(left, _PIECE))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    data = b"".join(parts)
    if response.length or unmeasured and _is_cut(data):  # the connection has ended before the answer
        raise http.client.IncompleteRead(data, response.length)
    return data


def _is_cut(data: bytes) -> bool:
    """Report whether an answer that does not say how long it is has ended too early."""
    if not data.startswith(b"{"):
        return not data
    try:
        json.loads(data)
    except ValueError:
        return True
    except RecursionError:
        pass
    return False


def _namespaces(pid: int) -> int:
    """Return how many pid namespaces a process is in, from that of this process to its own."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
        return next((len(line.split()) - 1 for line in status if line.startswith("NSpid:")), 0)


class Transport:
    """Connects to one sidecar. It has no state, so threads may share it, and forks do no harm."""

    def __init__(self, s: Settings) -> None:
        self.settings = s
        try:
            url = urlsplit(s.sidecar)
            self._host, self._port = url.hostname or "", url.port
        except ValueError:
            raise self._no_address() from None
        self.local = url.scheme == "unix"
        self._path = url.path.rstrip("/")
        if url.query or url.fragment or url.username is not None:
            raise self._no_address()
        if not (
            (self.local and not url.netloc and self._path and "\0" not in self._path)
            or (url.scheme in ("http", "https") and _is_host(self._host) and not self._path)
        ):
            raise self._no_address()
        if url.scheme == "http" and s.token and not s.insecure and not _local(self._host):
            raise invalid(
                "sidecar",
                f"a token is not sent to {url.netloc} over plain HTTP, where others can read it:"
                " use https://, or insecure=True (BERTH_INSECURE=true) in a network that only you can read",
            )
        self._tls: Optional[ssl.SSLContext] = None
        if url.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=s.cacert or None)
                if s.cert:
                    self._tls.load_cert_chain(s.cert, s.key)
            except OSError as err:  # an SSLError is one, too
                raise invalid("sidecar_cacert, sidecar_cert, sidecar_key", f"a file can't be used: {err}") from err

    def _no_address(self) -> BerthError:
        return invalid("sidecar", f"{self.settings.sidecar!r} is no address: write http://host:port, https://host:port or unix:///path")

    def _check_owner(self) -> None:
        """Refuse a socket of another user in a folder in which all users can make one."""
        try:
            owner = os.stat(self._path).st_uid
            above = os.path.dirname(os.path.realpath(self._path))
            folder = os.stat(above).st_mode
            if os.path.ismount(above) and not folder & stat.S_ISVTX:
                return  # a volume of a container: its users are those of the pod
        except OSError:
            return  # to connect tells why
        if owner not in (0, os.geteuid()) and folder & stat.S_IWOTH:
            raise self._permanent(PermissionError(f"the socket belongs to user {owner}, in a folder in which all users may make one"))

    def _connection(self) -> http.client.HTTPConnection:
        if self.local:
            if len(os.fsencode(self._path)) > _MAX_PATH:
                raise self._permanent(OSError(f"the path is too long: a socket can have {_MAX_PATH} bytes"))
            self._check_owner()
            return _UnixConnection(self._path, _CONNECT_TIMEOUT)
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=_CONNECT_TIMEOUT, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_TIMEOUT)

    def connect(self, timeout: float, interrupt: Optional[Interrupt] = None) -> http.client.HTTPConnection:
        """Connect, and return the connection. ``timeout`` is how long one answer may take."""
        conn = self._connection()
        conn.response_class = _Response
        conn.timeout = min(timeout, _CONNECT_TIMEOUT)
        try:
            conn.connect()
        except ssl.SSLCertVerificationError as err:
            conn.close()
            raise self._permanent(err) from err
        except PermissionError as err:
            conn.close()
            raise self._permanent(err) from err
        except OSError as err:
            conn.close()
            raise Unavailable("unavailable", self._unreachable(err)) from err
        except BaseException:
            conn.close()
            raise
        try:
            sock: socket.socket = conn.sock
            sock.settimeout(timeout)
            if not self.local:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _KEEPALIVE.items():
                    if hasattr(socket, name):
                        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            if interrupt is not None:
                interrupt.watch(sock)
        except BaseException:
            conn.close()
            raise
        return conn

    def shares_pids(self) -> bool:
        """Report whether the sidecar is at a unix socket and in the pid namespace of this process, so that it can watch it."""
        if not self.local or not hasattr(socket, "SO_PEERCRED"):
            return False
        conn = self.connect(_CONNECT_TIMEOUT)
        try:
            (pid,) = struct.unpack_from("i", conn.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        finally:
            conn.close()
        try:
            return pid != 0 and _namespaces(pid) == _namespaces(os.getpid())
        except OSError:  # hidden from this user, or it has ended
            return False

    def _unreachable(self, err: BaseException) -> str:
        return f"the sidecar at {self.settings.sidecar} can't be reached: {str(err) or type(err).__name__}"

    def _permanent(self, err: OSError) -> Unavailable:
        """Return the error of a connection that fails until a person changes something."""
        hint = ""
        if isinstance(err, ssl.SSLCertVerificationError):
            hint = _HINTS.get(err.verify_code, "name the authority that signed its certificate with BERTH_SIDECAR_CACERT")
        elif self.local and err.errno == errno.EACCES:
            hint = "join the group of the socket (usermod -aG), and log in again"
        failed = Unavailable("unavailable", self._unreachable(err) + (f"; {hint}" if hint else ""))
        failed.permanent = True
        return failed

    def exchange(
        self,
        method: str,
        path: str,
        body: Optional[Any],
        headers: Mapping[str, str],
        timeout: float,
        interrupt: Optional[Interrupt] = None,
    ) -> Answer:
        """Send one request, and return its answer. An answer that is an error is raised."""
        payload = None if body is None else json.dumps(body).encode()
        conn = self.connect(timeout, interrupt)
        sock: socket.socket = conn.sock  # conn forgets it when the server ends the connection
        try:
            self.send(conn, method, path, payload, headers)
            response = conn.getresponse()
            data = _read(response)
            answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, data, self.settings.sidecar)
        except (OSError, http.client.HTTPException, ValueError) as err:
            if interrupt is not None:
                interrupt.check()
            lost = Unavailable("unavailable", self._unreachable(err))
            lost.sent = True
            raise lost from err
        finally:
            if interrupt is not None:
                interrupt.done()
            shut(sock)
            conn.close()
        if not 200 <= answer.status < 300:  # a redirect is not followed: the token is for no other host
            raise self.refusal(answer)
        return answer

    def events(self, path: str, headers: Mapping[str, str], timeout: float, interrupt: Interrupt) -> Iterator[str]:
        """Yield the types of server-sent events, until the server ends the stream."""
        conn = self.connect(timeout, interrupt)
        sock: socket.socket = conn.sock
        try:
            self.send(conn, "GET", path, None, {**headers, "Accept": "text/event-stream"})
            response = conn.getresponse()
            if not 200 <= response.status < 300:
                raise self.refusal(Answer(response.status, {}, _read(response), self.settings.sidecar))
            for line in response:
                if line.startswith(b"event:"):
                    yield line[6:].strip().decode("ascii", "replace")
        except (OSError, http.client.HTTPException) as err:
            interrupt.check()
            raise Unavailable("unavailable", self._unreachable(err)) from err
        finally:
            interrupt.done()
            shut(sock)
            conn.close()

    def send(self, conn: http.client.HTTPConnection, method: str, path: str, payload: Optional[bytes], headers: Mapping[str, str]) -> None:
        """Send one request on a connection."""
        all_headers: Dict[str, Union[str, bytes]] = {name: value.encode() for name, value in headers.items()}
        if self.settings.token:
            all_headers["Authorization"] = "Bearer " + self.settings.token
        if payload is not None:
            all_headers["Content-Type"] = "application/json"
        conn.request(method, path, payload, all_headers)

    def refusal(self, answer: Answer) -> BerthError:
        """Return the error in an answer."""
        after: Optional[float] = None
        try:
            after = float(answer.headers["retry-after"])
        except (KeyError, ValueError):
            pass
        try:
            problem = json.loads(answer.body)
            return error_of(problem, answer.status, after)
        except (ValueError, KeyError, TypeError, RecursionError):
            return stranger(self.settings.sidecar, answer.status, answer.body)
