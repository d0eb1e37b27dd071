"""``python -m berth exec``: what ``berth exec`` does through a sidecar, without the binary."""

import argparse
import ctypes
import difflib
import os
import re
import select
import signal
import stat
import sys
import threading
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

from . import program
from .claims import Claim
from .client import Client
from .errors import LOST_CODES, BerthError, ClaimLost, Unavailable, invalid
from .held import log
from .values import now, seconds

# The exit codes of berth: see docs/reference/cli.md.
USAGE, TIMEOUT, LOST, REFUSED = 2, 75, 76, 77
NOT_EXECUTABLE, NOT_FOUND, SIGNALED = 126, 127, 128
_TIMEOUT = frozenset({"no_capacity", "claim_timeout"})
# Errors that are no refusal of the request. For exec, pool_not_found is one.
_FAILURE = frozenset(
    "claim_canceled claim_not_found corrupt_value etcd_full etcd_unavailable internal not_found run_not_ended run_not_found"
    " run_not_queued slow_request state_unwritable step_ended step_not_found stopping too_many too_many_requests unavailable".split()
)

# The shortest lease that leaves time to stop a command.
_MIN_LEASE = 10.0
_CHECK = 0.25  # seconds between two checks of the claim
_WAIT_REPORT = 1.0
_REPORT_TIME = 0.1  # how long it waits for the writing of a message

# Signals that end a command which does not handle them, and others that it gets.
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_OTHERS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)


def exit_code(err: BerthError) -> int:
    """Return the exit code for an error."""
    if err.code in _TIMEOUT or isinstance(err, Unavailable) and err.waited:
        return TIMEOUT
    if err.code in LOST_CODES:
        return LOST
    return 1 if err.code in _FAILURE else REFUSED


class _Signaled(BaseException):
    """A signal that came before the command ran."""

    def __init__(self, number: int) -> None:
        self.number = number


#: The variables that give settings to berth; this client reads some of them.
VARIABLES = (
    "BERTH_CACERT", "BERTH_CERT", "BERTH_CLAIM_POLL_INTERVAL", "BERTH_CLAIM_POLL_JITTER", "BERTH_CLAIM_TIMEOUT", "BERTH_CLIENT_CA",
    "BERTH_CLUSTER", "BERTH_COMMANDS_FROM", "BERTH_COMPACT_INTERVAL", "BERTH_COORDINATOR", "BERTH_DATA_DIR", "BERTH_ENDPOINTS",
    "BERTH_ETCD_LISTEN", "BERTH_HOST", "BERTH_INSECURE", "BERTH_KEY", "BERTH_LISTEN", "BERTH_LOG_FORMAT", "BERTH_LOG_LEVEL",
    "BERTH_MAX_NOT_BEFORE", "BERTH_MAX_RUN_EVENTS", "BERTH_MAX_STORED_RUN_DATA", "BERTH_MAX_UNFINISHED_RUNS", "BERTH_NAME", "BERTH_PASSWORD",
    "BERTH_PASSWORD_FILE", "BERTH_PREFIX", "BERTH_ROLES", "BERTH_RUN_RETENTION", "BERTH_SIDECAR", "BERTH_SIDECAR_CACERT", "BERTH_SIDECAR_CERT",
    "BERTH_SIDECAR_KEY", "BERTH_SOCKET", "BERTH_SOCKET_GROUP", "BERTH_SOCKET_MODE", "BERTH_START_TIMEOUT", "BERTH_STATE_DIR",
    "BERTH_TICK_INTERVAL", "BERTH_TLS_CERT", "BERTH_TLS_KEY", "BERTH_TOKEN", "BERTH_TOKENS_FILE", "BERTH_TOKEN_FILE", "BERTH_USER",
)  # fmt: skip

#: What a command, a step or a unit of systemd gets besides.
_OTHERS_OF_BERTH = ("CONFIG", "CLAIM_ID", "FENCE", "POOLS", "RUN_ID", "STEP", "INDEX", "ATTEMPT", "INPUT", "SOURCE", "OPTIONS", "BIN")
#: What Kubernetes sets for a service whose name begins with berth.
_OF_SERVICE = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$")


def _warn_of_variables() -> None:
    """Warn of variables that look like settings and are not."""
    known = {*VARIABLES, *("BERTH_" + name for name in _OTHERS_OF_BERTH)}
    for name in sorted(os.environ):
        if not name.startswith("BERTH_") or name in known or not os.environ[name] or name.startswith("BERTH_TEST_") or _OF_SERVICE.search(name):
            continue
        near = difflib.get_close_matches(name, VARIABLES, 1, 0.8)
        say(f"warning: the variable {name} is not a setting of berth: " + (f"did you mean {near[0]}?" if near else "it is ignored"))


class _Exit(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def main(argv: Sequence[str]) -> int:
    """Run a command line, and return the exit code."""
    try:
        _open_standard_files()
        request, command, verbose = _parse(argv)
        _warn_of_variables()
        try:
            request["client"] = Client()
        except BerthError as err:
            raise _Exit(USAGE, f"settings: {err}") from err
        try:
            claim = Claim(**request)
        except BerthError as err:
            raise _Exit(USAGE, str(err)) from err
        return _run(claim, command, program.find(command[0]), verbose)
    except _Signaled as ended:
        return SIGNALED + ended.number
    except _Exit as end:
        say(str(end))
        return end.code
    except program.CannotRun as err:
        say(str(err))
        return NOT_FOUND if err.missing else NOT_EXECUTABLE
    except BerthError as err:
        say(str(err))
        return exit_code(err)


def say(text: str) -> None:
    """Report something to the user. The claim does not wait for a pipe that is full, or a terminal whose output was stopped."""
    line = "berth: " + "".join(c if c.isprintable() else "?" for c in text) + "\n"
    writer = threading.Thread(target=_write, args=(line.encode(errors="replace"),), daemon=True)
    writer.start()
    writer.join(_REPORT_TIME)


def _write(line: bytes) -> None:
    try:
        os.write(2, line)
    except OSError:
        pass  # nobody could read that


def _open_standard_files() -> None:
    """Open /dev/null as those of the standard files that are closed: another file of this process would be in their place."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Exit(USAGE, f"{message}: see python -m berth exec --help")


def _parse(argv: Sequence[str]) -> Tuple[Dict[str, Any], List[str], bool]:
    top = _Parser(prog="python -m berth", description="Client of berth.")
    commands = top.add_subparsers(dest="verb", metavar="COMMAND", required=True)
    p = commands.add_parser(
        "exec",
        usage="python -m berth exec --pool POOL[=SLOTS] [option ...] -- COMMAND [ARGUMENT ...]",
        help="run a command while holding slots",
        description="Wait for slots of the sidecar at BERTH_SIDECAR, run the command, and release them.",
    )
    p.add_argument("--pool", action="append", default=[], metavar="POOL=SLOTS", help="slots of a pool, one if SLOTS is left out; may be repeated")
    p.add_argument("--wait", metavar="TIME", help="longest time to wait for the slots; 0 does not wait (10m, or BERTH_CLAIM_TIMEOUT)")
    p.add_argument("--priority", type=int, default=0, metavar="N", help="from -1000 to 1000; higher priorities are first")
    p.add_argument("--run", default="", help="name of the run that the claim is for")
    p.add_argument("--step", default="", help="name of the step that the claim is for")
    p.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="attach it to the claim; may be repeated")
    p.add_argument("--id", help="id of the claim (generated)")
    p.add_argument("-v", "--verbose", action="store_true", help="report why it waits, even if stderr is not a terminal")
    p.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command and its arguments")
    a = top.parse_args(list(argv))
    command: List[str] = a.command[1:] if a.command[:1] == ["--"] else a.command
    if not command:
        raise _Exit(USAGE, "the command is missing: python -m berth exec --pool POOL=SLOTS -- COMMAND")
    if not a.pool:
        raise _Exit(USAGE, "--pool is missing: give POOL=SLOTS, or POOL for one slot")
    wait = a.wait if a.wait is not None else os.environ.get("BERTH_CLAIM_TIMEOUT") or "10m"
    try:
        seconds(wait, "wait")
    except BerthError:
        raise _Exit(USAGE, f"--wait can't be {wait!r}: it is a duration such as 30s, 10m or 1h30m, or 0") from None
    request: Dict[str, Any] = dict(
        pools=_pairs("pool", a.pool, "1", _slots),
        wait=wait,
        priority=a.priority,
        id=a.id,
        run_id=a.run,
        step_key=a.step,
        labels=_pairs("label", a.label, None, str),
    )
    return request, command, a.verbose or os.isatty(2)


def _pairs(flag: str, texts: Sequence[str], usual: Optional[str], read: Callable[[str], Any]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and usual is not None:
            value = usual
        elif not equals:
            raise _Exit(USAGE, f"--{flag} can't be {text!r}: expected KEY=VALUE")
        if name in found:
            raise _Exit(USAGE, f"--{flag} names {name!r} twice")
        try:
            found[name] = read(value)
        except ValueError:
            raise _Exit(USAGE, f"--{flag} can't be {text!r}: expected POOL=SLOTS") from None
    return found


def _slots(text: str) -> int:
    """Read a number of slots. One with the sign + looks like an increase."""
    if not re.fullmatch("-?[0-9]+", text):
        raise ValueError(text)
    return int(text)


def _run(claim: Claim, argv: List[str], path: str, verbose: bool) -> int:
    client = claim.client
    with _Signals() as signals:
        client.once("GET", "/readyz", timeout=5)
        _check_leases(client, claim.pools)
        if client.transport.shares_pids():  # until the command runs
            claim._binding = {"pid": os.getpid(), "only_kill": True}
        over = threading.Event()
        if verbose:
            threading.Thread(target=_report_wait, args=(claim, over), daemon=True).start()
        try:
            try:
                claim.acquire()
            except BerthError as err:
                if err.code == "invalid":  # an option is out of range
                    raise _Exit(USAGE, str(err)) from err
                raise
            finally:
                over.set()
            signals.raising = False
            code = _Job(claim, signals).run(argv, path)
        finally:
            if claim.fence:
                _release(claim, signals)
    if code == SIGNALED + signal.SIGINT and signals.foreground:
        # Ctrl-C ended the command, which had the terminal: it ends the script that calls this, too.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.killpg(0, signal.SIGINT)
    return code


def _release(claim: Claim, signals: "_Signals") -> None:
    """Release the slots. A signal cuts it short."""
    try:
        signals.raising = True
        claim._stop()
        claim._delete(5.0)
    except (_Signaled, BerthError) as err:
        say(f"the slots could not be released; they are free when the lease ends: {err}")


def _check_leases(client: Client, pools: Mapping[str, int]) -> None:
    for name in sorted(pools):
        try:
            pool = client.pools.get(name)
        except BerthError as err:
            if err.code != "pool_not_found":
                raise
            continue  # the claim is refused
        if pool.get("deleted"):
            continue  # the claim is refused
        lease = seconds(pool["lease_duration"])
        if lease < _MIN_LEASE:
            raise invalid("pool", f"{name!r} has leases of {lease:g} s, and exec needs {_MIN_LEASE:g} s to stop its command in time")


def _report_wait(claim: Claim, over: threading.Event) -> None:
    last = ""
    while not over.wait(_WAIT_REPORT):
        try:
            reason = claim.client.claims.why(claim.id).get("reason", {})
        except BerthError:
            continue  # it does not wait yet, or no longer
        text = reason.get("text", "")
        if reason.get("position"):
            text += f", position {reason['position']} of {reason.get('waiting')}"
        if text and text != last and not over.is_set():
            say("waiting: " + text)
            last = text


class _Signals:
    """Catches the signals that are not ignored. While ``raising``, those that end a process raise :class:`_Signaled`."""

    def __init__(self) -> None:
        self.raising, self.foreground = True, False
        self._queue: List[int] = []
        self._old: Dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        os.set_blocking(self._reader, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (*_ENDINGS, *_OTHERS, signal.SIGCHLD):
            if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                self._old[number] = signal.signal(number, self._caught)
        _reap_orphans()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def _caught(self, number: int, _: object) -> None:
        if self.raising:
            if number in _ENDINGS:
                raise _Signaled(number)
            if number == signal.SIGCHLD:
                _reap_orphans()
        elif number != signal.SIGCHLD:
            self._queue.append(number)

    def wait(self, most: float) -> List[int]:
        """Wait for a signal, and return those that came."""
        select.select([self._reader], [], [], most)
        try:
            os.read(self._reader, 4096)
        except BlockingIOError:
            pass
        came, self._queue = self._queue, []
        return came


def _reap_orphans() -> None:
    """Reap what this process adopts as process 1 of a container, while it has no child of its own."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class _Job:
    """A command that runs while a claim is held."""

    def __init__(self, claim: Claim, signals: _Signals) -> None:
        self._claim, self._signals = claim, signals
        self._lost: Optional[ClaimLost] = None
        self._kill_at = 0.0
        self._status: Optional[int] = None
        self._terminal: Optional[int] = None
        self._child = 0

    def run(self, argv: List[str], path: str) -> int:
        self._guard()
        if self._lost is not None:
            return LOST
        try:
            self._start(argv, path)
            while not self._ended():
                for number in self._signals.wait(_CHECK):
                    self._signal(number)
                self._guard()
            return self._finish()
        finally:
            if self._terminal is not None:
                os.close(self._terminal)

    def _start(self, argv: List[str], path: str) -> None:
        self._terminal = _open_terminal()
        # Before the command begins: it would be stopped if it asked for the terminal first.
        in_front = self._foreground() == os.getpgrp() and not _in_pipeline()
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        parent, terminal = os.getpid(), self._terminal

        def prepare() -> None:
            os.setpgid(0, 0)
            if in_front and terminal is not None:
                mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
                try:
                    os.tcsetpgrp(terminal, os.getpid())
                except OSError:
                    pass  # it was hung up
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if libc is not None:
                libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the command ends with this process
                if os.getppid() != parent:
                    os._exit(1)

        try:
            self._popen = program.start(argv, path, env=self._environment(), preexec_fn=prepare, close_fds=False)
            self._child = self._popen.pid
        finally:
            # Taking the terminal back from the background, or writing to it, would stop this process
            # otherwise. Set only now: the command would inherit it.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            if in_front and not self._child:
                self._put(os.getpgrp())
        if self._claim._binding:
            threading.Thread(target=self._bind, daemon=True).start()

    def _environment(self) -> Dict[str, str]:
        env = dict(os.environ)
        for secret in ("BERTH_TOKEN", "BERTH_PASSWORD"):
            if env.get(secret):
                del env[secret]
        name, colon, _ = env.get("BERTH_USER", "").partition(":")
        if colon:
            env.pop("BERTH_USER")
            if name:
                env["BERTH_USER"] = name
        pools = self._claim.pools
        env.update(
            BERTH_CLAIM_ID=self._claim.id,
            BERTH_FENCE=str(self._claim.fence),
            BERTH_POOLS=",".join(f"{p}={pools[p]}" for p in sorted(pools)),
        )
        return env

    def _bind(self) -> None:
        """Bind the claim to the command, whose end the sidecar notices then. The claim is valid either way."""
        pause = 0.2
        while self._status is None:
            try:
                self._claim._send_renewal(2.0, pid=self._child, only_kill=True)
                return
            except Unavailable as err:
                log.debug("the claim could not be bound to the command: %s", err)
                pause = 10.0 if err.code == "state_unwritable" else pause
            except BerthError as err:
                if self._status is None and err.code not in ("claim_not_found", "invalid"):  # the command has ended
                    say(f"the claim could not be bound to the command: {err}")
                return
            except Exception:
                return  # the claim is being released
            self._claim._interrupt.wait(pause)

    def _ended(self) -> bool:
        """Whether the command has ended. One that was stopped is dealt with."""
        while self._status is None:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return False
            if pid != self._child:
                continue  # an orphan that process 1 of a container has adopted
            if os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status))
            else:
                self._status = self._popen.returncode = status  # it is reaped here
        return True

    def _guard(self) -> None:
        """Stop the command if the claim is lost."""
        if self._lost is None:
            try:
                self._claim.check()
                return
            except ClaimLost as err:
                if self._child and self._ended():
                    return  # that is why, perhaps
                self._lost, self._kill_at = err, now() + self._claim.valid_for
                say(f"{err}; stopping the command (exit code {LOST})")
            if self._child:
                self._send(signal.SIGTERM)
                self._send(signal.SIGCONT)
        elif now() >= self._kill_at and self._status is None:
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        try:
            os.killpg(self._child, number)
        except (ProcessLookupError, PermissionError):
            pass  # the group is empty, or has another user

    def _signal(self, number: int) -> None:
        """Pass a signal on."""
        if number == signal.SIGCONT:
            self._guard()
            if self._lost is not None:
                return  # what was stopped has not run since
            if not _in_pipeline():
                self._lend()
        self._send(number)

    def _finish(self) -> int:
        assert self._status is not None
        self._signals.foreground = self._take_terminal()
        if self._lost is not None:
            self._send(signal.SIGKILL)  # what is left of the group
            return LOST
        if not os.WIFSIGNALED(self._status):
            return os.WEXITSTATUS(self._status)
        if os.WTERMSIG(self._status) == signal.SIGKILL and self._claim._binding:
            # The sidecar kills the command of a claim that this process did not stop in time.
            try:
                self._claim._send_renewal(2.0)
            except BerthError as err:
                if err.code in LOST_CODES:
                    say(f"{err}; the command was killed (exit code {LOST})")
                    return LOST
        return SIGNALED + os.WTERMSIG(self._status)

    def _foreground(self) -> int:
        """Return the process group in the foreground of the terminal, 0 if there is none."""
        try:
            return 0 if self._terminal is None else os.tcgetpgrp(self._terminal)
        except OSError:
            return 0

    def _put(self, group: int) -> bool:
        """Put a process group into the foreground. Return whether that was possible."""
        try:
            assert self._terminal is not None
            os.tcsetpgrp(self._terminal, group)
            return True
        except OSError:
            return False

    def _lend(self) -> bool:
        """Put the command into the foreground of the terminal, if this process is there. Return whether the command is there."""
        foreground = self._foreground()
        if foreground == os.getpgrp():
            return self._put(self._child)
        return foreground == self._child

    def _take_terminal(self) -> bool:
        """Take the terminal again. Return whether the command had it."""
        had = self._foreground() == self._child
        if had:
            self._put(os.getpgrp())
        return had

    def _stopped(self, number: int) -> None:
        """Deal with a command that needs the terminal, or that the user suspends: then this process group is suspended, too."""
        if self._terminal is None or self._lost is not None:
            return
        if number in (signal.SIGTTIN, signal.SIGTTOU) and self._lend():
            self._send(signal.SIGCONT)
            return
        if _is_orphaned():
            # No shell could continue the command. Without this process, its keys would not have stopped it either.
            if number == signal.SIGTSTP:
                self._send(signal.SIGCONT)
            return
        self._take_terminal()
        # The shell sees that its job has been stopped when all of its group are, such as a script that calls this.
        # Those of a program that reads in the background get the signal of the terminal, which timeout(1) ignores.
        by = number if number in (signal.SIGTTIN, signal.SIGTTOU) else signal.SIGTSTP
        # This process stops by the same call: if it stopped itself afterwards, a shell that continues the group in between
        # would leave it stopped.
        handler = signal.signal(by, signal.SIG_DFL)
        os.killpg(0, by)
        signal.signal(by, handler)
        # The signal that continues this process is passed on.


def _open_terminal() -> Optional[int]:
    """Open the controlling terminal. Where there is no /dev/tty, it is one of the standard files."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        pass
    for fd in (0, 1, 2):
        try:
            os.tcgetpgrp(fd)  # not of any other terminal
            return os.dup(fd)
        except OSError:
            pass
    return None


def _in_pipeline() -> bool:
    """Whether another command of a pipeline may need the terminal first. The command gets it when it asks for it."""
    return any(_is_pipe(fd) for fd in (0, 1, 2))


def _is_orphaned() -> bool:
    """Whether no shell watches over this process group: the first ancestor outside of it belongs to another session."""
    try:
        process = os.getppid()
        while process > 1:
            if os.getpgid(process) != os.getpgrp():
                return os.getsid(process) != os.getsid(0)
            with open(f"/proc/{process}/stat", "rb") as file:
                process = int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError):
        pass
    return True


def _is_pipe(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
