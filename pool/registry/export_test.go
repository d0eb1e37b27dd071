package registry

// What tests of other packages' values need.
var (
	DecodeOldSpec   = decodeOldSpec
	DecodeOldHolder = decodeOldHolder
	DecodeTask      = decodeTask
)
