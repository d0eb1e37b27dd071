"""``python -m berth exec``: exit codes, environment, signals, loss."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any, Dict, List, Optional, Sequence

import berth
from berth import exec as berth_exec
from berth import program as berth_program
from berth.errors import BerthError

from .rig import PATIENCE, PYTHON, ROOT, Case, Dev


# A shell with job control, which runs one command in the foreground ("fg") or in the background. A
# line that is typed when the command has been stopped puts it into the foreground.
SHELL = """
import os, signal, sys
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    if sys.argv[1] == "fg":
        os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execvp(sys.argv[2], sys.argv[2:])
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
while True:
    status = os.waitpid(pid, os.WUNTRACED)[1]
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        print("shell: ended", os.waitstatus_to_exitcode(status), flush=True)
        break
    print("shell: stopped", flush=True)
    os.read(0, 3)
    os.tcsetpgrp(0, pid)
    os.killpg(pid, signal.SIGCONT)
"""

# Does some times what exec does when it has its slots, and ends with the first command that fails.
STARTS = """
import signal, sys
from berth import exec, program
class Claim:
    id, fence, pools, valid_for, _binding = "c", 1, {}, 3600.0, None
    def check(self): pass
argv = sys.argv[2:]
with exec._Signals() as signals:
    signals.raising = False
    for _ in range(int(sys.argv[1])):
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        code = exec._Job(Claim(), signals).run(argv, program.find(argv[0]))
        if code:
            sys.exit(code)
"""

# Becomes a program that gets the orphans of those that it starts, as process 1 of a container does.
ADOPTS = [
    sys.executable,
    "-c",
    """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(36, 1, 0, 0, 0):
    raise OSError("PR_SET_CHILD_SUBREAPER")
# before
os.environ["ADOPTER"] = str(os.getpid())
os.execvp(sys.argv[1], sys.argv[1:])
""",
]

# Makes orphans, and waits until they have been reaped by the process that has adopted them.
ORPHANS = """
import os, subprocess, sys, time
for _ in range(int(sys.argv[1])):
    reader, writer = os.pipe()
    pid = int(subprocess.run(["sh", "-c", f"cat <&{reader} >/dev/null & echo $!"], pass_fds=[reader], stdout=subprocess.PIPE).stdout)
    parent = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1]
    assert parent == os.environ["ADOPTER"], parent
    os.close(writer)
    end = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < end, "the orphan was not reaped"
        time.sleep(0.01)
"""


def command(*args: str, by: Sequence[str] = (), cwd: Optional[str] = None, pass_fds: Sequence[int] = (), stderr: int = subprocess.PIPE, **env: str) -> "subprocess.Popen[str]":
    """Start exec with arguments and further variables, and by another program."""
    environment = {**os.environ, "PYTHONPATH": str(PYTHON), **env}
    return subprocess.Popen(
        [*by, sys.executable, "-m", "berth", "exec", *args],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
        cwd=cwd,
        pass_fds=pass_fds,
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
        script = os.path.join(self.dev.dir, "a-script")
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
            "a bad priority": (2, ["--pool", pool, "--priority", "2000", "--", "true"]),
            "no such command": (127, ["--pool", pool, "--", "no-such-command"]),
            "no such interpreter": (127, ["--pool", pool, "--", script]),
            "not executable": (126, ["--pool", pool, "--", "/etc/passwd"]),
            "no command": (2, ["--pool", pool]),
            "no pool": (2, ["--", "true"]),
            "a bad wait": (2, ["--pool", pool, "--wait", "soon", "--", "true"]),
            "a bad pool": (2, ["--pool", f"{pool}=many", "--", "true"]),
            "an increase": (2, ["--pool", f"{pool}=+1", "--", "true"]),
            "no slots": (2, ["--pool", f"{pool}=0", "--", "true"]),
            "twice": (2, ["--pool", pool, "--pool", pool, "--", "true"]),
            "an unknown flag": (2, ["--nope", "--", "true"]),
        }
        last = ("status", "without dashes", "signal", "no such interpreter")
        first = [what for what in cases if what not in last]
        for batch in (first[i : i + 4] for i in range(0, len(first), 4)):  # more at a time are too much for two processors
            running = {what: (cases[what][0], command(*cases[what][1])) for what in batch}
            for what, (code, process) in running.items():
                with self.subTest(what):
                    _, err = self.ends(process, code)
                    self.assertRegex(err, "^berth: ")
        for what in last:
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

    def test_variables_that_mean_nothing(self) -> None:
        _, err = self.ends(command("--pool", self.pool(), "--", "true", BERTH_SIDECARS="x", BERTH_ENDPOINTS="x", BERTH_PORT="tcp://x"), 0)
        self.assertEqual(err, "berth: warning: the variable BERTH_SIDECARS is not a setting of berth: did you mean BERTH_SIDECAR?\n")

    def test_the_variables_are_those_of_the_reference(self) -> None:
        with open(ROOT / "docs" / "reference" / "settings.md", encoding="utf-8") as file:
            self.assertEqual(set(berth_exec.VARIABLES), set(re.findall(r"\| `(BERTH_[A-Z_]+)` \|", file.read())))

    def test_other_exit_codes(self) -> None:
        pool = self.pool()
        self.ends(command("--pool", pool, "--", "true", BERTH_SIDECAR="nonsense"), 2)
        self.ends(command("--pool", pool, "--id", "", "--", "true"), 2)  # as "$ID" if there is no such variable
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

    def test_a_command_is_stopped_although_nobody_reads_what_is_reported(self) -> None:
        pool = self.pool()
        script = "echo $BERTH_CLAIM_ID; exec sleep 1000"
        for open_reader in (False, True):
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            try:
                while open_reader:
                    os.write(writer, b"x" * 4096)
            except BlockingIOError:
                os.set_blocking(writer, True)  # now the pipe is full
            if not open_reader:
                os.close(reader)
            process = command("--pool", pool, "--", "sh", "-c", script, stderr=writer)
            os.close(writer)
            assert process.stdout is not None
            berth.Client().claims.revoke(process.stdout.readline().strip())
            self.ends(process, 76)
            self.pool_is(pool, 0, 0)
            if open_reader:
                os.close(reader)

    def test_standard_files_that_are_closed(self) -> None:
        pool = self.pool()
        closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
        with tempfile.TemporaryDirectory() as folder:
            self.ends(command("--pool", pool, "--", "sh", "-c", "echo lost; readlink /proc/self/fd/0 /proc/self/fd/1 >out; exit 4", by=closed, cwd=folder), 4)
            with open(os.path.join(folder, "out"), encoding="ascii") as out:
                self.assertEqual(out.readline(), "/dev/null\n")
        self.ends(command("--pool", "nosuch", "--", "true", by=closed), 77)

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

    def typed(self, *steps: "tuple[str, bytes]", argv: Sequence[str]) -> str:
        """Run a program in a terminal. Type each text when the terminal shows what comes before it, and return what it shows."""
        pid, fd = pty.fork()
        if pid == 0:
            try:
                os.environ["PYTHONPATH"] = str(PYTHON)
                os.execvp(argv[0], argv)
            finally:
                os._exit(1)
        shown, left, end = b"", list(steps), time.monotonic() + PATIENCE
        try:
            while True:
                if not select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
                    os.kill(pid, signal.SIGKILL)
                    self.fail(f"nothing comes after {shown!r}")
                shown += os.read(fd, 4096)
                if left and left[0][0].encode() in shown:
                    os.write(fd, left.pop(0)[1])
        except OSError:
            pass  # all that had the terminal have ended
        finally:
            os.close(fd)
            os.waitpid(pid, 0)
        self.assertEqual(left, [], shown)
        return shown.decode()

    def test_commands_begin_in_the_foreground(self) -> None:
        in_front = 'set -- $(cat /proc/$$/stat); test "$5" = "$8"'
        shown = self.typed(argv=[sys.executable, "-c", SHELL, "fg", sys.executable, "-c", STARTS, "200", "sh", "-c", in_front])
        self.assertEqual(shown, "shell: ended 0\r\n")
        shown = self.typed(argv=[sys.executable, "-c", SHELL, "bg", sys.executable, "-c", STARTS, "1", "sh", "-c", f"! {{ {in_front}; }}"])
        self.assertEqual(shown, "shell: ended 0\r\n")

    def test_a_command_in_the_background_waits_for_the_foreground_to_read(self) -> None:
        steps = [("stopped", b"fg\nhello\n")]
        shown = self.typed(*steps, argv=[sys.executable, "-c", SHELL, "bg", sys.executable, "-c", STARTS, "1", "sh", "-c", "read x; echo got $x"])
        self.assertIn("got hello", shown)
        self.assertIn("shell: ended 0", shown)

    def test_a_command_that_reads_in_the_background_does_not_stop_the_program_that_ends_it(self) -> None:
        # timeout(1) puts its command into the background, and ignores the signal that stops what reads there.
        line = f"timeout 3 {sys.executable} -m berth exec --pool {self.pool()} -- sh -c 'read line'; exit $?"
        pid, fd = pty.fork()
        if pid == 0:
            try:
                os.environ["PYTHONPATH"] = str(PYTHON)
                os.execv("/bin/sh", ["sh", "-c", line])
            finally:
                os._exit(1)
        self.addCleanup(os.close, fd)
        ended: List[int] = []

        def has_ended() -> bool:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ended.append(os.waitstatus_to_exitcode(status))
            return found != 0

        self.until(has_ended)
        self.assertEqual(ended, [124])

    def test_ctrl_z_stops_the_script_that_calls_exec(self) -> None:
        pool = self.pool()
        script = f"{sys.executable} -m berth exec --pool {pool} -- sh -c 'echo ready; read x; echo got $x'; echo after"
        shown = self.typed(("ready", b"\x1a"), ("stopped", b"fg\nhello\n"), argv=[sys.executable, "-c", SHELL, "fg", "sh", "-c", script])
        self.assertRegex(shown, "(?s)ready.*shell: stopped.*got hello.*after.*shell: ended 0")
        self.pool_is(pool, 0, 0)

    def test_ctrl_z_does_not_stop_a_command_that_no_shell_could_continue(self) -> None:
        pool = self.pool()
        # A shell that starts commands cannot be stopped while it waits in vfork(2) for a child that is stopped.
        script = (
            "import os, signal, sys\n"
            "signal.signal(signal.SIGCONT, lambda *_: os.write(1, b'continued'))\n"
            "signal.signal(signal.SIGINT, lambda *_: sys.exit(3))\n"
            "os.write(1, b'ready')\n"
            "while True:\n"
            "    signal.pause()\n"
        )
        argv = [sys.executable, "-m", "berth", "exec", "--pool", pool, "--", sys.executable, "-c", script]
        self.typed(("ready", b"\x1a"), ("continued", b"\x03"), argv=argv)
        self.pool_is(pool, 0, 0)

    def test_programs_are_found_and_run_as_by_a_shell(self) -> None:
        pool = self.pool()
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        files = {
            "a-script": b"#!/bin/sh\nexit 5\n",
            "plain": b"exit $((6 + $#))\n",
            "empty": b"",
            "bare": b"#!\nexit 7\n",
            "-e": b"exit 8\n",
            "archive": b"exit 8\n\0\1 which the shell never reads",
            "nested": f"#!{folder}/a-script\n".encode(),
            "windows": b"#!/bin/sh\r\nexit 0\n",
            "no-interpreter": b"#! /no/such/shell -x\n",
            "no-more": f"#!{folder}/no-interpreter\n".encode(),
            "dir-interpreter": f"#!{folder}\n".encode(),
            "by-env": b"#!/usr/bin/env sh\nexit 5\n",
            "env-none": b"#!/usr/bin/env no-such-shell\n",
            "env-windows": b"#!/usr/bin/env sh\r\nexit 5\r\n",
            "binary": b"\x7fPROGRAM\x00 of another machine\n",
            "text": b"exit 0\n",
        }
        for name, content in files.items():
            path = os.path.join(folder, name)
            with open(path, "wb") as file:
                file.write(content)
            os.chmod(path, 0o600 if name == "text" else 0o700)
        os.mkdir(os.path.join(folder, "folder"))
        os.mkfifo(os.path.join(folder, "fifo"), 0o700)
        usual = os.environ["PATH"]
        nowhere = "unix:///nowhere"  # what cannot be run ends exec before it connects
        for name, path, code, text in (
            ("./a-script", usual, 5, ""),
            ("./plain", usual, 8, ""),
            ("./empty", usual, 0, ""),
            ("./bare", usual, 7, ""),
            ("./archive", usual, 8, ""),
            ("./nested", usual, 5, ""),
            ("./binary", usual, 126, "Exec format error"),
            ("a-script", usual + ":" + folder, 5, ""),
            ("plain", usual + ":", 8, ""),
            ("-e", usual + ":", 8, ""),
            ("plain", ".:" + usual, 8, ""),
            ("plain", usual + "::/other", 8, ""),
            ("./windows", usual, 127, "its lines end as on Windows"),
            ("./no-interpreter", usual, 127, "its interpreter '/no/such/shell': No such file or directory"),
            ("./no-more", usual, 127, "its interpreter '/no/such/shell'"),
            ("./by-env", usual, 5, ""),
            ("./env-none", usual, 127, "its interpreter 'no-such-shell': no-such-shell: there is no such command"),
            ("./env-windows", usual, 127, "its lines end as on Windows, and its interpreter 'sh\\r'"),
            ("./dir-interpreter", usual, 126, "its interpreter"),
            ("./none", usual, 127, "No such file or directory"),
            ("plain", usual, 127, "there is no such command"),
            ("./text", usual, 126, "Permission denied"),
            ("text", usual + ":", 126, "Permission denied"),
            ("./folder", usual, 126, "Is a directory"),
            ("folder", usual + ":", 127, "there is no such command"),
            ("./fifo", usual, 126, "Permission denied"),
        ):
            sidecar = self.dev.http if code not in (126, 127) or name == "./binary" else nowhere
            process = command("--pool", pool, "--", name, "a", "b", cwd=folder, PATH=path, BERTH_SIDECAR=sidecar)
            with self.subTest(name=name, path=path):
                _, err = self.ends(process, code)
                self.assertIn(text, err)

    def test_a_program_without_its_loader(self) -> None:
        with open("/bin/sh", "rb") as file:
            program = file.read()
        loader = berth_program._loader("/bin/sh")
        if not loader:
            self.skipTest("the shell has no loader")
        with tempfile.NamedTemporaryFile(delete=False) as other:
            other.write(program.replace(loader.encode(), b"/" * (len(loader) - 1) + b"0", 1))
        self.addCleanup(os.unlink, other.name)
        os.chmod(other.name, 0o700)
        _, err = self.ends(command("--pool", "any", "--", other.name, BERTH_SIDECAR="unix:///nowhere"), 127)
        self.assertIn("its interpreter", err)
        with open(other.name, "wb") as damaged:
            damaged.write(program[:32] + b"\xff" * 24 + program[56:])
        self.assertEqual(berth_program._loader(other.name), "")

    def test_the_command_inherits_open_files(self) -> None:
        pool = self.pool()
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        os.write(writer, b"token")  # as the job server of make
        script = f'test "$(head -c 5 <&{reader})" = token && printf back >&{writer}'
        self.ends(command("--pool", pool, "--", "sh", "-c", script, pass_fds=(reader, writer)), 0)
        self.assertEqual(os.read(reader, 100), b"back")
        lists = ["ls", "/proc/self/fd"]
        want = subprocess.run(lists, pass_fds=(reader,), stdin=subprocess.DEVNULL, capture_output=True, check=True, text=True).stdout
        out, _ = self.ends(command("--pool", pool, "--", *lists, pass_fds=(reader,)), 0)
        self.assertEqual(out, want)

    def test_orphans_are_reaped(self) -> None:
        pool = self.pool()
        _, err = self.ends(command("--pool", pool, "--", "sh", "-c", f"{sys.executable} -c '{ORPHANS}' 5 && exit 7", by=ADOPTS), 7)
        self.assertEqual(err, "")
        # Also while it waits: its own child from before it became exec is as good as an orphan.
        before = [*ADOPTS[:-1], ADOPTS[-1].replace("# before", "if os.fork() == 0: os._exit(0)")]
        with berth.claim({pool: 1}):
            process = command("--pool", pool, "--", "true", by=before)
            self.pool_is(pool, 1, 1)
            with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
                children = file.read()
        self.ends(process, 0)
        self.assertEqual(children, "")

    def test_a_caller_that_ignores_the_end_of_its_children(self) -> None:
        ignores = [sys.executable, "-c", "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])"]
        self.ends(command("--pool", self.pool(), "--", "sh", "-c", "exit 7", by=ignores), 7)

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
