"""What the tests share: a real ``berth dev``, and a proxy that loses answers.

``BERTH_BIN`` is the binary; bin/berth of the checkout if it is not set.
"""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import berth
from berth.transport import shut

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / "clients" / "python"
BINARY = os.environ.get("BERTH_BIN") or str(ROOT / "bin" / "berth")
# Bounds what must happen some time: far longer than it takes.
PATIENCE = 60.0


class Dev:
    """A ``berth dev`` with an etcd of its own, which everyone may use without a token unless it has one."""

    def __init__(self, token: str = "") -> None:
        self.dir = tempfile.mkdtemp(prefix="berth", dir="/tmp")  # short: a socket's path is, too
        env = {k: v for k, v in os.environ.items() if not k.startswith("BERTH_")}
        if token:
            tokens = os.path.join(self.dir, "tokens.yaml")
            with open(os.open(tokens, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
                file.write(f"- {{name: test, hash: 'sha256:{hashlib.sha256(token.encode()).hexdigest()}', roles: [admin]}}\n")
            env["BERTH_TOKENS_FILE"] = tokens
        with open(os.path.join(self.dir, "log"), "wb") as log:
            self.process = subprocess.Popen(
                [BINARY, "dev", "-o", "json", "--listen", "127.0.0.1:0", "--etcd-listen", "127.0.0.1:0", "--data-dir", os.path.join(self.dir, "data")],
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
            )
        assert self.process.stdout is not None
        text = b""
        while not text.rstrip().endswith(b"}"):
            line = self.process.stdout.readline()
            if not line:
                with open(os.path.join(self.dir, "log"), encoding="utf-8") as log_file:
                    raise RuntimeError("berth dev does not serve: " + log_file.read())
            text += line
        at = json.loads(text)
        self.http, self.socket = at["http"], at["socket"]

    def kill(self) -> None:
        """Kill it, as a crash does."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        shutil.rmtree(self.dir, ignore_errors=True)


class Case(unittest.TestCase):
    """A test with a ``berth dev``, which the environment names."""

    dev: Dev

    @classmethod
    def setUpClass(cls) -> None:
        cls.dev = Dev()
        cls.addClassCleanup(cls.dev.close)
        old = os.environ.get("BERTH_SIDECAR")
        os.environ["BERTH_SIDECAR"] = cls.dev.http
        cls.addClassCleanup(restore, "BERTH_SIDECAR", old)

    def pool(self, limit: int = 1, **settings: Any) -> str:
        """Create a pool of the test's own."""
        name = "p" + uuid.uuid4().hex[:12]
        berth.Client().pools.set(name, limit, **settings)
        return name

    def pool_is(self, name: str, claimed: int, waiting: int) -> None:
        """Wait until a pool has so many slots claimed, and so many waiters."""

        def counts() -> Any:
            p = berth.Client().pools.get(name)
            return p["claimed"], p["waiting"]

        self.until(lambda: counts() == (claimed, waiting), lambda: f"pool {name} has {counts()}")

    def until(self, done: Callable[[], bool], state: Callable[[], str] = str) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > end:
                self.fail("it did not happen: " + state())
            time.sleep(0.02)


def restore(variable: str, old: Optional[str]) -> None:
    if old is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = old


class Background:
    """Work in a thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: Optional[BaseException] = None

        def run() -> None:
            try:
                self.result = work()
            except BaseException as err:
                self.error = err

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def join(self) -> Any:
        self.thread.join(PATIENCE)
        if self.thread.is_alive():
            raise AssertionError("the thread has not ended")
        if self.error is not None:
            raise self.error
        return self.result


class Proxy:
    """Passes connections on to a sidecar. ``lose`` says which answers are lost: by the first line of the request."""

    def __init__(self, http: str, lose: Callable[[str, int], bool]) -> None:
        host, port = http[len("http://") :].split(":")
        self._to = (host, int(port))
        self._lose = lose
        self.requests: List[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.http = "http://127.0.0.1:%d" % self._listener.getsockname()[1]
        self._open: Dict[socket.socket, None] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        shut(self._listener)
        self._listener.close()
        for sock in list(self._open):
            shut(sock)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._to) as server:
            self._open.update({client: None, server: None})
            request = client.recv(65536)
            first = request.split(b"\r\n", 1)[0].decode()
            self.requests.append(first)
            lost = self._lose(first, sum(r == first for r in self.requests))
            server.sendall(request)
            back = threading.Thread(target=self._copy, args=(client, server), daemon=True)
            back.start()
            while True:
                try:
                    data = server.recv(65536)
                except OSError:
                    data = b""
                if not data or lost:  # the sidecar has answered
                    break
                client.sendall(data)
            shut(client)
            shut(server)
            back.join()
            for sock in (client, server):
                self._open.pop(sock, None)

    @staticmethod
    def _copy(source: socket.socket, to: socket.socket) -> None:
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    break
                to.sendall(data)
        except OSError:
            pass
        shut(to)
