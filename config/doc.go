// Package config reads berth's settings: from a file, from the environment and
// from flags, in that order of strength.
//
// # Nouns
//
// A [Field] is one setting. The table of all of them ([Fields]) gives each its
// name in the file, and from that its environment variable and its flag, its
// default, and what is allowed. Everything else is derived from the table: what
// [Load] accepts, the flags of the commands ([Flags]), and the pages that list
// the settings.
//
// [Settings] are what came out. A [Secret] among them does not show itself: not
// in a log, not as JSON, not in an error.
//
// A [Group] is a set of fields that some commands need and others do not. What
// a value looks like is always checked. Whether fields go together, and whether
// the files they name can be read, only where the command needs their group: so
// a user who may not read the sidecar's token file can still list pools with
// the same settings file.
//
// # Failure
//
// [Load] never stops at the first problem. It returns [Problems]: all of them,
// each with the field, where its value came from, the value, and what it must
// be.
//
// The file is a flat mapping in YAML. An unknown name in it is a problem. An
// environment variable that is set but empty counts as not set, an empty flag
// or an empty string in the file as an empty value.
package config
