// Command berth allots slots of named pools to jobs on many hosts, and queues runs.
//
// Each file holds the commands of one noun. Shared by all are app.go (the runner of
// commands and their connections), line.go (order of the words of a command line, and
// help), completion.go, output.go (what is printed, and exit codes), service.go (processes
// that serve) and child.go (processes that berth starts, and their terminal). Package
// manifest reads the files that users write.
//
// # How a command ends
//
// A command writes its result to stdout and everything else to stderr. If it fails, it
// writes one line, "berth: what happened; what to do", and exits with the code of the table
// in package problem: 1 in general, 75 if the time to wait is over, 76 if a claim was lost,
// 77 if the request was refused. 2 is an invalid command line or invalid settings. exec
// exits with the code of its child.
//
// # exec
//
// exec runs a child while a claim is valid: see [guard]. A [directHolder] keeps the claim
// in etcd, with an instance that lives as long as the command, and a [sidecarHolder] at a
// sidecar. In both cases exec measures the validity by its own clock, and stops the child
// before it ends, also if the sidecar or etcd is unavailable. If exec itself is stopped
// while its child runs, or if the child leaves its process group, only the fencing token
// separates the old holder from the next one.
package main
