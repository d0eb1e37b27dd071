// Package inspect is the read model of berth: what the CLI, the HTTP API and the
// pages show of pools, claims, runs, steps and hosts, computed and worded once.
//
// The records ([Pool], [Claim], [Run], [Step], [Host], …) are the JSON of the HTTP
// API and of "-o json"; tables and pages render the same records. A function named
// after a record and ending in Of makes it from the state of one package:
// [PoolOf], [RunOf]. Functions that end in Text return the words for a value.
//
// The package reads and computes; it keeps no state and writes nothing.
package inspect
