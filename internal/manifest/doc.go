// Package manifest reads the files that people write for berth, in YAML or JSON: the
// pools and limits of 'berth apply' ([ReadDeclaration]), the runs of 'berth submit'
// ([ReadRun]) and the sources of 'berth source run' ([ReadSource]).
//
// Reading is strict. An unknown or repeated field, a value that YAML readers disagree
// about, an alias and a value out of range are refused, and the error is [*Problems]: all
// that is wrong, each with its line and column.
package manifest
