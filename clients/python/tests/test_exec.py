"""``python -m berth exec``: exit codes, environment, signals, loss."""

import os
import pty
import re
import signal
import subprocess
import sys
import unittest
from typing import Any, Dict, Sequence

import berth
from berth import exec as berth_exec
from berth.errors import BerthError

from .rig import PATIENCE, PYTHON, ROOT, Case, Dev


def command(*args: str, by: Sequence[str] = (), **env: str) -> "subprocess.Popen[str]":
    """Start exec with arguments and further variables, and by another program."""
    environment = {**os.environ, "PYTHONPATH": str(PYTHON), **env}
    return subprocess.Popen(
        [*by, sys.executable, "-m", "berth", "exec", *args],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


class ExecTest(Case):
    def ends(self, process: "subprocess.Popen[str]", code: int) -> "tuple[str, str]":
        out, err = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, code, err)
        return out, err

    def test_the_command_has_the_claim_and_no_secrets(self) -> None:
        token = "0123456789abcdef"
        dev = Dev(token)
        self.addCleanup(dev.close)
        pool = "secrets"
        pools = berth.Client(dev.socket).pools
        pools.set(pool, 2)
        for sidecar in (dev.http, dev.socket):
            process = command(
                "--pool", f"{pool}=2", "--id", "mine", "--", "env",
                BERTH_SIDECAR=sidecar, BERTH_TOKEN=token, BERTH_PASSWORD="x", BERTH_USER="root:secret",
            )  # fmt: skip
            out, _ = self.ends(process, 0)
            env = dict(line.partition("=")[::2] for line in out.splitlines())
            self.assertEqual((env["BERTH_CLAIM_ID"], env["BERTH_POOLS"], env["BERTH_USER"]), ("mine", f"{pool}=2", "root"))
            self.assertGreater(int(env["BERTH_FENCE"]), 0)
            self.assertEqual(env["BERTH_SIDECAR"], sidecar)
            self.assertNotIn("BERTH_TOKEN", env)
            self.assertNotIn("BERTH_PASSWORD", env)
            self.assertEqual(pools.get(pool)["claimed"], 0)

    def test_another_pid_namespace(self) -> None:
        contained = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        try:
            subprocess.run([*contained, "true"], check=True, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("no process can be started in a pid namespace of its own")
        pool = self.pool()
        process = command("--pool", pool, "--", "sh", "-c", "echo $BERTH_POOLS", by=contained, BERTH_SIDECAR=self.dev.socket)
        out, err = self.ends(process, 0)
        self.assertEqual((out, err), (f"{pool}=1\n", ""))
        self.pool_is(pool, 0, 0)

    def test_exit_codes(self) -> None:
        pool, short = self.pool(), self.pool(lease_duration="5s")
        script = os.path.join(self.dev.dir, "script")
        with open(script, "w", encoding="ascii") as file:
            file.write("#!/nowhere/at/all\n")
        os.chmod(script, 0o755)
        cases: Dict[str, Any] = {
            "status": (3, ["--pool", pool, "--", "sh", "-c", "exit 3"]),
            "without dashes": (4, ["--pool", pool, "sh", "-c", "exit 4"]),
            "signal": (128 + 9, ["--pool", pool, "--", "sh", "-c", "kill -9 $$"]),
            "no such pool": (77, ["--pool", "nope", "--", "true"]),
            "more than the limit": (77, ["--pool", f"{pool}=2", "--", "true"]),
            "a short lease": (77, ["--pool", short, "--", "true"]),
            "a bad priority": (77, ["--pool", pool, "--priority", "2000", "--", "true"]),
            "no such command": (127, ["--pool", pool, "--", "no-such-command"]),
            "no such interpreter": (127, ["--pool", pool, "--", script]),
            "not executable": (126, ["--pool", pool, "--", "/etc/passwd"]),
            "no command": (2, ["--pool", pool]),
            "no pool": (2, ["--", "true"]),
            "a bad wait": (2, ["--pool", pool, "--wait", "soon", "--", "true"]),
            "a bad pool": (2, ["--pool", f"{pool}=many", "--", "true"]),
            "twice": (2, ["--pool", pool, "--pool", pool, "--", "true"]),
            "an unknown flag": (2, ["--nope", "--", "true"]),
        }
        running = {what: (code, command(*args)) for what, (code, args) in cases.items() if what not in ("status", "without dashes", "signal", "no such interpreter")}
        for what, (code, process) in running.items():
            with self.subTest(what):
                _, err = self.ends(process, code)
                self.assertRegex(err, "^berth: ")
        for what in ("status", "without dashes", "signal", "no such interpreter"):
            with self.subTest(what):
                self.ends(command(*cases[what][1]), cases[what][0])
        self.pool_is(pool, 0, 0)

    def test_a_deleted_pool_does_not_exist(self) -> None:
        pools, pool = berth.Client(self.dev.socket).pools, self.pool()
        with berth.claim({pool: 1}):
            pools.delete(pool)
            _, err = self.ends(command("--pool", pool, "--", "true"), 77)
        self.assertIn("there is no pool", err)
        self.assertNotIn("leases", err)

    def test_other_exit_codes(self) -> None:
        pool = self.pool()
        self.ends(command("--pool", pool, "--", "true", BERTH_SIDECAR="nonsense"), 2)
        self.ends(command("--pool", pool, "--", "true", BERTH_SIDECAR="unix:///nowhere"), 1)
        with berth.claim({pool: 1}) as c:
            self.ends(command("--pool", pool, "--wait", "0", "--", "true"), 75)
            self.ends(command("--pool", pool, "--wait", "100ms", "--", "true"), 75)
            self.ends(command("--pool", pool, "--id", c.id, "--", "true"), 77)

    def test_exit_codes_are_those_of_the_reference(self) -> None:
        page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| `(\w+)` \| \d+ \| (\d+) \|", page, re.MULTILINE)
        self.assertGreater(len(rows), 30)
        for code, want in rows:
            if code != "pool_not_found":  # that is a refusal of exec
                self.assertEqual(berth_exec.exit_code(BerthError(code, "")), int(want), code)
        self.assertEqual(berth_exec.exit_code(BerthError("pool_not_found", "")), 77)

    def test_signals_are_passed_on(self) -> None:
        pool = self.pool()
        for sidecar in (self.dev.http, self.dev.socket):
            process = command("--pool", pool, "--", "sh", "-c", "trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.05; done", BERTH_SIDECAR=sidecar)
            assert process.stdout is not None
            self.assertEqual(process.stdout.readline(), "ready\n")
            process.send_signal(signal.SIGUSR1)
            out, _ = self.ends(process, 5)
            self.assertEqual(out, "got\n")
            process = command("--pool", pool, "--", "sh", "-c", "echo ready; exec sleep 1000", BERTH_SIDECAR=sidecar)
            assert process.stdout is not None
            process.stdout.readline()
            process.terminate()
            self.ends(process, 128 + 15)
            self.pool_is(pool, 0, 0)

    def test_a_signal_during_the_wait_leaves_the_wait_queue(self) -> None:
        pool = self.pool()
        with berth.claim({pool: 1}):
            process = command("--pool", pool, "-v", "--", "true")
            self.pool_is(pool, 1, 1)
            assert process.stderr is not None
            self.assertRegex(process.stderr.readline(), "waiting: .*full")
            process.terminate()
            self.ends(process, 128 + 15)
            self.pool_is(pool, 1, 0)

    def test_a_revoked_claim_stops_the_command(self) -> None:
        pool = self.pool()
        for sidecar in (self.dev.http, self.dev.socket):
            process = command("--pool", pool, "--", "sh", "-c", "trap 'echo stopped; exit 0' TERM; echo $BERTH_CLAIM_ID; while :; do sleep 0.05; done", BERTH_SIDECAR=sidecar)
            assert process.stdout is not None
            berth.Client().claims.revoke(process.stdout.readline().strip())
            out, err = self.ends(process, 76)
            self.assertEqual(out, "stopped\n")
            self.assertIn("stopping the command (exit code 76)", err)
            self.pool_is(pool, 0, 0)

    def terminal(self, script: str, typed: bytes) -> "tuple[int, str]":
        """Run a script in a terminal, type when it is ready, and return the status and what the terminal has shown."""
        pool = self.pool()
        pid, fd = pty.fork()
        if pid == 0:
            try:
                os.environ["PYTHONPATH"] = str(PYTHON)
                os.execv(sys.executable, [sys.executable, "-m", "berth", "exec", "--pool", pool, "--", "sh", "-c", script])
            finally:
                os._exit(1)
        shown = b""
        try:
            while True:
                shown += os.read(fd, 4096)
                if typed and b"ready" in shown:
                    os.write(fd, typed)
                    typed = b""
        except OSError:
            pass  # all that had the terminal have ended
        finally:
            os.close(fd)
        status = os.waitpid(pid, 0)[1]
        self.pool_is(pool, 0, 0)
        return os.waitstatus_to_exitcode(status), shown.decode()

    def test_the_command_has_the_terminal(self) -> None:
        status, shown = self.terminal('echo ready; read x; echo "got $x"', b"hello\n")
        self.assertEqual(status, 0, shown)
        self.assertIn("got hello", shown)
        status, shown = self.terminal("echo ready; exec sleep 1000", b"\x03")
        self.assertEqual(status, -signal.SIGINT, shown)  # as if the command were alone

    def test_exec_that_is_killed(self) -> None:
        pool = self.pool()
        process = command("--pool", pool, "--", "sh", "-c", "echo $$; exec sleep 1000", BERTH_SIDECAR=self.dev.socket)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        self.ends(process, -9)
        self.until(lambda: not alive(child))
        self.pool_is(pool, 0, 0)


class LossTest(unittest.TestCase):
    def test_a_command_that_ignores_term_is_killed_before_the_validity_ends(self) -> None:
        dev = Dev()
        self.addCleanup(dev.close)
        berth.Client(dev.http).pools.set("db", 1, lease_duration="10s")
        process = command("--pool", "db", "--", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done", BERTH_SIDECAR=dev.http)
        assert process.stdout is not None
        process.stdout.readline()
        dev.kill()
        _, err = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 76, err)
        self.assertIn("could not be renewed in time; stopping the command", err)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    unittest.main()
