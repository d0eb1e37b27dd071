// Package child runs one command under a supervisor process, so that the command
// outlives the worker that started it.
//
// # Nouns
//
//   - A [Command] is the command to run: an argument vector, without a shell.
//   - A supervisor is a process "berth supervise DIR" in its own session: see
//     [Supervise]. It runs one command, and ends with it.
//   - A [Child] is a command as its worker sees it: started by [Start], or opened by
//     [Open] after a restart of the worker.
//   - A [Result] states how a command has ended.
//
// Worker and supervisor share only the folder of the child:
//
//	command.json   the command; written by Start
//	stdin          its input, if any
//	valid_until    until when the command may run
//	control        a named pipe, open as long as the supervisor lives; takes the order to stop
//	running.json   the process of the supervisor; written before the command starts
//	output         stdout and stderr in their order: of a long output the beginning and the
//	               end
//	shift          how many bytes are missing before the end; absent if none are
//	result.json    the result; written last, atomically and durably
//
// # Invariants
//
//   - A child is running, has ended with a result, or has vanished: then its supervisor
//     was killed. The pipe and result.json alone decide which. The supervisor inherits the
//     pipe, so at no moment does the death of a worker make a living child look like a
//     vanished one.
//   - When Done is closed, no process of the command is left, except for the limits below.
//     When the command itself has ended, its group gets SIGTERM, and all that is left after
//     the grace is killed, inside or outside of the group. Processes outside of the session
//     get SIGTERM as well, and have one second.
//   - A command is stopped before the validity of its step ends, even if its worker is
//     dead: it gets SIGTERM the grace before, and SIGKILL at the end. The worker extends
//     the validity with [Child.Extend] when its lease is renewed. The clock is
//     [lease.BootClock], checked every 250 ms, so that a suspend is noticed; the margin of
//     a validity window allows for that.
//   - The command has exactly the environment and the three files that it was given. Its
//     supervisor has an empty environment and no other files either, so that the worker's
//     secrets are not exposed.
//
// # When processes are killed
//
// The worker: the command continues, and the next worker opens the folder. Without one, the
// command is stopped at the end of its validity.
//
// The supervisor: the kernel kills the command with it. The processes that the command has
// started are killed by the process that has the Child open, or opens it next, before the
// child counts as vanished: all that are left of the supervisor's session.
//
// The command: the result has the signal.
//
// # Limits
//
// A process that has left the session (setsid) outlives a supervisor that is killed, and
// the session of a vanished child is not stopped while there is no worker. A program that
// runs as another user (setuid) cannot be killed, and is not waited for. A supervisor that
// is stopped (SIGSTOP) does not check the clock. In these cases only the fencing token
// protects the resource.
//
// A service manager must stop the worker alone: systemd, for example, kills the whole
// control group without KillMode=process. A supervisor handles SIGTERM as the order to
// stop its command.
//
// All this needs Linux, which has the parent-death signal and adopts orphans. Elsewhere
// Start, Open and Supervise fail with [errors.ErrUnsupported].
package child
