"""Which error a caller gets if a sidecar can't be reached, or if what answers is no sidecar."""

import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest
from typing import Any, Callable, List, Optional
from unittest import mock

import berth

from .rig import BINARY, PYTHON

HTML = b"<html>it works</html>"


def answer(status: str, body: bytes = b"", kind: str = "application/json", more: str = "") -> bytes:
    """Return an answer over HTTP."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def request_of(sock: socket.socket) -> bytes:
    """Read one request with its body. A connection that is closed with unread data would be reset."""
    with sock.makefile("rb") as stream:
        lines = []
        for line in stream:
            lines.append(line)
            if line == b"\r\n":
                break
        length = next((int(line.split()[1]) for line in lines if line.lower().startswith(b"content-length:")), 0)
        return b"".join(lines) + stream.read(length)


class Server:
    """Answers every request with the same bytes, and closes the connection."""

    def __init__(self, data: bytes, wrap: Optional[Callable[[socket.socket], socket.socket]] = None) -> None:
        self.requests: List[bytes] = []
        self._data, self._wrap = data, wrap
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._wrap is not None:
                    sock = self._wrap(sock)
                self.requests.append(request_of(sock))
                sock.sendall(self._data)
            except OSError:
                pass
            finally:
                sock.close()


class ErrorsTest(unittest.TestCase):
    def serve(self, data: bytes, wrap: Optional[Callable[[socket.socket], socket.socket]] = None) -> Server:
        server = Server(data, wrap)
        self.addCleanup(server.close)
        return server

    def error_of(self, work: Callable[[], Any], kind: Any = berth.BerthError) -> Any:
        with self.assertRaises(kind) as caught:
            work()
        return caught.exception

    def claimed(self, address: str, wait: str = "200ms", **options: Any) -> Any:
        """Return the error of a claim."""
        with mock.patch("berth.claims.PATIENCE", 0.2), mock.patch("berth.claims._WITHDRAW_PATIENCE", 0.1):
            return self.error_of(berth.Claim({"db": 1}, wait=wait, client=berth.Client(address, **options)).acquire)

    def asked(self, address: str, **options: Any) -> Any:
        """Return the error of a request for an answer of another kind."""
        return self.error_of(lambda: berth.Client(address, **options).call("GET", "/v1/whoami", patience=0.2).json())

    def each(self, address: str, **options: Any) -> List[Any]:
        return [self.claimed(address, **options), self.claimed(address, wait="0", **options), self.asked(address, **options)]

    def test_a_sidecar_that_can_not_be_reached_is_unavailable_however_long_the_wait(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            refused = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for address in (refused, "http://nowhere.invalid:7420", "unix:///nowhere/berth.sock", "unix:///" + "x" * 200):
            for err in self.each(address):
                with self.subTest(address, err=err):
                    self.assertIs(type(err), berth.Unavailable)
                    self.assertEqual((err.code, err.status), ("unavailable", 0))
                    self.assertIn("can't be reached", err.detail)

    def test_an_error_that_a_wait_ends_with_says_so(self) -> None:
        err = self.claimed("unix:///nowhere/berth.sock")
        self.assertRegex(err.detail, "^timed out after 0.2 s: the sidecar at unix:///nowhere/berth.sock can't be reached: ")

    def test_a_user_who_may_not_use_the_socket_learns_who_may(self) -> None:
        refused = PermissionError(13, "Permission denied")
        for address, hint in {"unix:///run/berth/berth.sock": True, "http://127.0.0.1:7420": False}.items():
            with mock.patch("socket.socket.connect", side_effect=refused), mock.patch("socket.create_connection", side_effect=refused):
                err = self.claimed(address)
            self.assertEqual("join the group of the socket" in err.detail, hint, err.detail)

    def test_interim_answers_are_skipped(self) -> None:
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\nContent-Length: 9\r\n\r\n"
        goes_on = b"HTTP/1.1 100 Continue\r\n\r\n"
        for interim in (hints, hints + b"HTTP/1.1 102 Processing\r\n\r\n" + hints, goes_on + hints + goes_on):
            server = self.serve(interim + answer("200 OK", b'{"name": "x"}'))
            self.assertEqual(berth.Client(f"http://127.0.0.1:{server.port}").call("GET", "/v1/whoami").json(), {"name": "x"})

    def test_an_answer_that_is_interim_alone_is_none(self) -> None:
        hints = b"HTTP/1.1 103 Early Hints\r\n\r\n"
        for data in (hints, hints * 1000, b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"):
            server = self.serve(data)
            for method in ("GET", "DELETE"):
                with self.assertRaises(berth.Unavailable):
                    berth.Client(f"http://127.0.0.1:{server.port}").call(method, "/v1/claims/a", patience=0.2)

    def test_a_sidecar_that_does_not_answer_is_unavailable(self) -> None:
        server = self.serve(b"")
        with mock.patch("berth.claims.ANSWER_TIMEOUT", 0.2):
            for data in (b"", b"HTTP/1.1 200 OK\r\n", answer("200 OK", b'{"id": "x"}')[:-4], b"no HTTP at all\r\n\r\n"):
                server._data = data
                for err in self.each(f"http://127.0.0.1:{server.port}"):
                    with self.subTest(data, err=err):
                        self.assertIs(type(err), berth.Unavailable)
                        self.assertEqual(err.code, "unavailable")
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        with mock.patch("berth.claims.ANSWER_TIMEOUT", 0.1):
            err = self.claimed(f"http://127.0.0.1:{silent.getsockname()[1]}", wait="0")
        self.assertIs(type(err), berth.Unavailable)
        self.assertIn("timed out", err.detail)

    def test_an_answer_that_ends_early_may_be_asked_for_again(self) -> None:
        for data in (b"HTTP/1.1 200 OK\r\nContent-Ty", b"HTTP/1.1 200 OK\r\n\r\n", b'HTTP/1.1 200 OK\r\n\r\n{"id": "x", "status": "he', b'HTTP/1.1 200 OK\r\n\r\n{"items": [{"name": "x"}'):
            server = self.serve(data)
            for err in self.each(f"http://127.0.0.1:{server.port}"):
                with self.subTest(data, err=err):
                    self.assertIs(type(err), berth.Unavailable)
                    self.assertFalse(err.permanent)
                    self.assertTrue(err.sent)

    def test_a_path_that_no_socket_can_have_is_not_waited_for(self) -> None:
        for path in ("/" + "x" * 200, "/" + "é" * 54):
            err = self.claimed("unix://" + path, wait="1h")
            self.assertIs(type(err), berth.Unavailable)
            self.assertTrue(err.permanent)
            self.assertIn("the path is too long", err.detail)

    def test_json_of_another_server_is_no_answer(self) -> None:
        server = self.serve(b"")
        client = berth.Client(f"http://127.0.0.1:{server.port}")
        for body in (b"{}", b'{"status": null, "items": null, "name": 1, "fence": "x"}'):
            server._data = answer("200 OK", body)
            for name, work in {
                "pools.list": client.pools.list,
                "pools.get": lambda: client.pools.get("db"),
                "pools.set": lambda: client.pools.set("db", 1),
                "claims.list": client.claims.list,
                "claims.get": lambda: client.claims.get("x"),
                "claims.why": lambda: client.claims.why("x"),
                "runs.submit": lambda: client.runs.submit(name="x"),
                "runs.get": lambda: client.runs.get("x"),
                "runs.wait": lambda: client.runs.wait("x"),
                "runs.events": lambda: client.runs.events("x"),
                "runs.logs": lambda: client.runs.logs("x"),
                "steps.list": lambda: client.steps.list("x"),
                "steps.get": lambda: client.steps.get("x", "s"),
                "steps.ready": client.steps.ready,
                "claim": berth.Claim({"db": 1}, wait="1h", client=client).acquire,
                "poll": berth.Claim({"db": 1}, id="x", client=client).poll,
                "work": berth.Work("x", "s", client=client).__enter__,
            }.items():
                with self.subTest(name, body=body):
                    err = self.error_of(work)
                    self.assertIs(type(err), berth.Unavailable)
                    self.assertTrue(err.permanent)

    def test_an_etcd_that_is_away_for_the_whole_wait_is_unavailable(self) -> None:
        for code in ("etcd_unavailable", "stopping", "state_unwritable", "unavailable", "etcd_full"):
            server = self.serve(answer("503 Service Unavailable", b'{"code": "%s", "detail": "not now"}' % code.encode(), "application/problem+json"))
            for err in self.each(f"http://127.0.0.1:{server.port}"):
                with self.subTest(code, err=err):
                    self.assertIs(type(err), berth.Unavailable)
                    self.assertEqual((err.code, err.status), (code, 503))

    def test_slots_that_are_not_free_are_no_capacity(self) -> None:
        for code in ("no_capacity", "claim_timeout"):
            server = self.serve(answer("409 Conflict", b'{"code": "%s", "position": 3}' % code.encode(), "application/problem+json"))
            err = self.claimed(f"http://127.0.0.1:{server.port}")
            self.assertIs(type(err), berth.NoCapacity)
            self.assertEqual((err.code, err.fields), (code, {"position": 3}))

    def test_a_proxy_that_reaches_no_sidecar_is_unavailable(self) -> None:
        for status in ("500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout"):
            server = self.serve(answer(status, HTML, "text/html"))
            for err in self.each(f"http://127.0.0.1:{server.port}"):
                with self.subTest(status, err=err):
                    self.assertIs(type(err), berth.Unavailable)
                    self.assertFalse(err.permanent)
                    self.assertEqual((err.code, err.status), ("unavailable", int(status[:3])))

    def test_another_server_at_the_address_is_not_waited_for(self) -> None:
        deep = b"[" * 100_000 + b"]" * 100_000
        for data in (
            answer("404 Not Found", HTML, "text/html"),
            answer("401 Unauthorized", b"", "text/html"),
            answer("404 Not Found", b"[]"),
            answer("404 Not Found", b'{"code": 7, "detail": []'),
            answer("404 Not Found", deep),
            answer("301 Moved Permanently", b"", "text/html", "Location: https://example.com/\r\n"),
            answer("200 OK", HTML, "text/html"),
            answer("200 OK", b"", "text/html"),
            answer("200 OK", b"null"),
            answer("200 OK", b"[1]"),
            answer("200 OK", deep),
            answer("200 OK", b'{"id": "\xff"}'),
            answer("200 OK", b'{"status": "ok"}'),
        ):
            server = self.serve(data)
            address = f"http://127.0.0.1:{server.port}"
            errors = [self.claimed(address, wait="2s"), self.error_of(lambda: berth.Client(address).pools.list())]
            for err in errors:
                with self.subTest(data[:60], err=err):
                    self.assertIs(type(err), berth.Unavailable)
                    self.assertTrue(err.permanent)
                    self.assertRegex(err.detail, "^what answers at .* is no sidecar: status [0-9]+, ")
            # A claim may have been made, and is withdrawn once.
            self.assertEqual([r.split(b" ")[0] for r in server.requests if r[:1] == b"P"], [b"POST"])

    def test_refusals_of_the_sidecar_are_neither(self) -> None:
        for status, code in {"500 Internal": "internal", "403 Forbidden": "forbidden", "503 Denied": "etcd_denied", "400 Bad": "malformed"}.items():
            server = self.serve(answer(status, b'{"code": "%s"}' % code.encode(), "application/problem+json"))
            for err in self.each(f"http://127.0.0.1:{server.port}"):
                with self.subTest(code, err=err):
                    self.assertIs(type(err), berth.BerthError)
                    self.assertEqual(err.code, code)

    def test_tls_that_fails_for_good_is_not_waited_for(self) -> None:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        subprocess.run([BINARY, "certs", "make", "--dir", folder, "--server", "a=berth.example.com"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(os.path.join(folder, "a.crt"), os.path.join(folder, "a.key"))
        server = self.serve(b"", lambda sock: context.wrap_socket(sock, server_side=True))
        address = f"https://127.0.0.1:{server.port}"
        for text, options in {"BERTH_SIDECAR_CACERT": {}, "IP address mismatch": {"cacert": os.path.join(folder, "ca.crt")}}.items():
            for err in [self.claimed(address, wait="2s", **options), self.asked(address, **options)]:
                with self.subTest(text, err=err):
                    self.assertIs(type(err), berth.Unavailable)
                    self.assertTrue(err.permanent)
                    self.assertRegex(err.detail, "can't be reached: .*" + text)
                    self.assertEqual("BERTH_SIDECAR_CACERT" in err.detail, not options)

    def test_a_server_without_tls_is_unavailable(self) -> None:
        def refuse(sock: socket.socket) -> socket.socket:
            sock.recv(65536)
            sock.sendall(answer("400 Bad Request"))
            raise OSError("it is not TLS")

        server = self.serve(b"", refuse)
        for err in self.each(f"https://127.0.0.1:{server.port}"):
            self.assertIs(type(err), berth.Unavailable)
            self.assertRegex(err.detail, "can't be reached: .*(?i:wrong.version)")

    def test_an_address_that_can_not_be_one_is_invalid(self) -> None:
        for bad in ("http://a..b:1", "http://" + "x" * 64 + ".com", "http://a b:1", "unix:///a\0b", "http://a\x7fb"):
            with self.subTest(bad):
                err = self.error_of(lambda: berth.Client(bad).whoami())
                self.assertIs(type(err), berth.BerthError)
                self.assertRegex(err.detail, "^sidecar: .* is no address")

    def test_a_client_token_that_can_not_be_sent_is_invalid(self) -> None:
        server = self.serve(b"")
        for bad in ("a\nb", "a\0b", "\ud800"):
            with self.subTest(bad):
                err = self.error_of(lambda: berth.Claim({"db": 1}, client_token=bad, wait=0, client=berth.Client(f"http://127.0.0.1:{server.port}")).acquire())
                self.assertIs(type(err), berth.BerthError)
                self.assertRegex(err.detail, "^client_token: ")
        self.assertEqual(server.requests, [])

    def test_exec_says_that_it_has_waited_in_vain(self) -> None:
        ready = answer("200 OK", b"{}")
        away = answer("503 Service Unavailable", b'{"code": "etcd_unavailable", "detail": "etcd does not answer"}', "application/problem+json")
        server = self.serve(b"")

        def choose(sock: socket.socket) -> socket.socket:
            first = sock.recv(65536, socket.MSG_PEEK)
            server._data = away if first.startswith(b"POST") else answer("200 OK", b'{"name": "db", "lease_duration": "5m"}') if b"/pools/" in first else ready
            return sock

        server._wrap = choose
        env = {**os.environ, "BERTH_SIDECAR": f"http://127.0.0.1:{server.port}"}
        done = subprocess.run(
            [sys.executable, "-m", "berth", "exec", "--pool", "db", "--wait", "200ms", "--", "true"], cwd=PYTHON, env=env, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 75, done.stderr)
        self.assertIn("timed out after 0.2 s: etcd does not answer", done.stderr)


if __name__ == "__main__":
    unittest.main()
