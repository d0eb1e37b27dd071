// Command berth allots slots of named pools to jobs on many hosts, and queues runs.
//
// Each file holds the commands of one noun. Shared by all are app.go (the runner of
// commands and their connections), line.go (order of the words of a command line, and
// help), completion.go, output.go (what is printed, and exit codes), and child.go (processes that
// berth starts, and their terminal). Package manifest reads the files that users write.
//
// # How a command ends
//
// A command writes what it was asked for to stdout and everything else to
// stderr. If it fails it writes one line, "berth: what happened; what to do",
// and exits with the code that the table of package problem gives: 1 in
// general, 75 after a wait in vain, 76 if a claim was lost, 77 if something was
// refused. 2 is a command line, a settings file or an environment that can't be
// understood. exec passes on the exit code of its child.
//
// # exec
//
// exec runs a child while a claim is held, and not for a moment longer: see
// [guard]. Two holders hide where the claim is kept: [directHolder] on etcd, with
// an instance that lives as long as the command, and [sidecarHolder] at a
// sidecar. Whichever it is, exec judges by a clock of its own when trust in the
// claim ends, and has stopped the child by then. So it does no harm if the
// sidecar, or etcd, is gone; exec itself must not be stopped while its child
// runs on, and the child must not leave its process group: then only the fence
// tells old from new.
package main
