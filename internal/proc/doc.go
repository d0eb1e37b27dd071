// Package proc identifies, starts, watches and stops processes of this host.
//
// # Nouns
//
//   - An [ID] names one process for good: a later process with the same number has
//     another start, another boot or another pid namespace.
//   - A [Stat] is what /proc states about a process.
//   - A [Process] is a process, not necessarily a child, that a [Watcher] watches.
//   - A [Group] is a child of this process that leads a process group of its own.
//   - A service is a process that systemd has started, and [Notify] is what it reports to it.
//   - A [Guard] decides when a process must get SIGTERM and SIGKILL, so that it has
//     ended before the validity of its claim ends.
//
// # Invariants
//
//   - A signal never reaches a later process with the same number. A process that is not
//     a child is signaled through a pidfd; a child is not reaped before its last signal.
//   - A child that [Start] has started is killed by the kernel when this process dies
//     (Linux only).
//
// Identities and watching need Linux.
package proc
