// Package config reads the settings of berth from a file, the environment and flags.
// Flags override variables, and variables override the file.
//
// # Nouns
//
// A [Field] is one setting. The table [Fields] has all of them, each with its name in the
// file, from which the names of its variable and flag follow, its default, and its allowed
// values. [Load], the flags of commands ([Flags]) and the reference pages are derived from
// the table.
//
// [Settings] are the result. A [Secret] is not printed in logs, JSON or errors.
//
// A [Group] is a set of fields that some commands need. The form of a value is always
// checked. Rules between fields, and files that they name, are checked only if the command
// needs their group: a user who may not read the token file of the sidecar can list pools
// with the same settings file.
//
// # Failure
//
// [Load] returns all problems as [Problems], each with the field, the source of its value,
// the value, and what it must be.
//
// The file is a flat mapping in YAML. An unknown name in it is a problem. A variable that is
// empty counts as not set; an empty flag, or an empty string in the file, is an empty value.
package config
