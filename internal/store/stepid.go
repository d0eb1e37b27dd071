package store

import (
	"fmt"
	"strconv"
	"strings"
)

// StepID names one step instance.
type StepID struct {
	Run, Step string
	Index     int
}

// indexWidth is how many digits an index has in keys at least, so that they sort.
const indexWidth = 6

// maxIndex bounds an index in keys. Graphs have far fewer instances.
const maxIndex = 1 << 30

// String is the form that keys have: RUN/STEP/INDEX. Neither name has a slash.
func (id StepID) String() string {
	b := make([]byte, 0, len(id.Run)+len(id.Step)+indexWidth+8)
	b = append(append(append(append(b, id.Run...), '/'), id.Step...), '/')
	return string(AppendPadded(b, id.Index, indexWidth))
}

// Text is the form for people: STEP[INDEX], without the run.
func (id StepID) Text() string { return id.Step + "[" + strconv.Itoa(id.Index) + "]" }

// ParseStepID reads what [StepID.String] writes.
func ParseStepID(s string) (StepID, error) {
	run, rest, _ := strings.Cut(s, "/")
	step, number, ok := strings.Cut(rest, "/")
	index, err := ParsePadded(number, indexWidth, maxIndex)
	if !ok || err != nil || run == "" || step == "" {
		return StepID{}, fmt.Errorf("%q names no step instance", s)
	}
	return StepID{Run: run, Step: step, Index: index}, nil
}
