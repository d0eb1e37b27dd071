// Package child keeps one command alive under a supervisor, so that it outlives
// the worker that has started it.
//
// # Nouns
//
//   - A [Command] is what is to be run: an argument vector and nothing of a shell.
//
//   - A supervisor is berth itself, run anew as "berth supervise DIR" in a session of
//     its own: see [Supervise]. It runs one command, and ends with it.
//
//   - A [Child] is a command as its worker sees it: started by [Start], or found
//     again by [Open] after the worker was restarted.
//
//   - A [Result] is how a command has ended.
//
// All that the two have in common is in the folder of the child:
//
//	command.json   what is to be run; written by Start
//	stdin          what the command reads, if anything
//	trust          until when the command may run
//	control        a named pipe, open as long as the supervisor lives; takes the order to stop
//	running.json   which process the supervisor is; written before the command starts
//	output         what the command has written, on stdout and stderr in their order: of
//	               much the beginning and the end
//	shift          how much less of it the file has, up to its end; absent if that is nothing
//	result.json    how it has ended; written last, whole and on disk
//
// # Invariants
//
//   - A child is running, has ended with a result, or has vanished: then its
//     supervisor was killed. Which of them is told by the pipe and by result.json
//     alone. The pipe is handed to the supervisor by descriptor, so there is no
//     moment at which a worker's death makes a living child look like a vanished
//     one.
//   - When Done is closed nothing of the command runs any more, but for the limits
//     below. When the command itself has ended, its group is told to stop, and what is
//     left after the grace is killed, in the group or outside of it. What has left the
//     session is told as well, and has a second for it.
//   - A command is stopped before the trust in its step ends, whether its worker
//     lives or not: it gets SIGTERM the grace before, and SIGKILL at that time. The
//     worker puts it off with [Child.Trust] as its lease is renewed. The clock is
//     [lease.BootClock]'s, and is looked at every 250 ms, so that a suspended machine
//     is noticed on its return; the margin of a trust window pays for that.
//   - The command has the environment and the three files that it was given, and no
//     others. Neither has its supervisor, whose environment is empty, so that nobody
//     finds the worker's secrets there.
//
// # When things are killed
//
// The worker: nothing happens to the command; the next worker opens the folder. If
// there is none in time, the end of trust stops the command.
//
// The supervisor: the kernel kills the command with it. What the command itself has
// started is killed by whoever holds the Child, or opens it next, before it counts as
// vanished: all that is left of the supervisor's session.
//
// The command: that is a result, with the signal.
//
// # Limits
//
// A process that has left the session (setsid) outlives its supervisor if that is
// killed, and nobody stops what was left of a vanished child while there is no
// worker. A program that runs as another user (setuid) can't be killed, and is not
// waited for. A supervisor that is stopped (SIGSTOP) looks at no clock. In all of
// these only the fence tells old from new.
//
// Whoever keeps a worker as a service must have it stopped alone: systemd, for one,
// kills the whole control group unless it is told KillMode=process. The supervisor
// takes a SIGTERM as the order to stop its command.
//
// All this is for Linux, which alone has the parent-death signal and adopts orphans.
// Elsewhere Start, Open and Supervise fail with [errors.ErrUnsupported].
package child
