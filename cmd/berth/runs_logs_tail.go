package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
)

// logPart is a part of an output.
type logPart struct {
	id   store.StepID
	log  *step.Log
	text []byte
	// missing is how many bytes are left out before it; joined tells that it is the first
	// of its attempt.
	missing int64
	joined  bool
	// ends tells that nothing comes behind it. Instance is how it stands then, if that is
	// known.
	ends     bool
	instance *step.Instance
}

// loggedPart is a part of an output, in JSON.
type loggedPart struct {
	RunID   string `json:"run_id"`
	Step    string `json:"step"`
	Index   int    `json:"index"`
	Attempt int    `json:"attempt"`
	// LeftOut is how many bytes of the attempt are left out before it.
	LeftOut int64  `json:"left_out"`
	Output  string `json:"output"`
	// Ended tells that it is the last of its attempt, and Status how the instance stands
	// then.
	Ended  bool   `json:"ended"`
	Status string `json:"status,omitempty"`
}

// logTail writes parts of outputs as they come.
type logTail struct {
	*printer
	clean bool // it is a terminal

	// last is whose part came last, and of which attempt; its last line may not be whole.
	last    store.StepID
	fence   int64
	midline bool
	// rest is the beginning of a character, or of the end of a line, whose rest may be yet
	// to come; of last.
	rest []byte
}

func (t *logTail) write(p *logPart) error {
	var b bytes.Buffer
	var err error
	switch t.format {
	case "json":
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		err = enc.Encode(p.record())
	case "yaml":
		b.WriteString("---\n")
		err = writeYAML(&b, p.record())
	default:
		t.add(&b, p)
	}
	if err != nil {
		return err
	}
	_, err = t.out.Write(b.Bytes())
	return err
}

func (p *logPart) record() loggedPart {
	r := loggedPart{
		RunID: p.id.Run, Step: p.id.Step, Index: p.id.Index, Attempt: p.log.Attempt,
		LeftOut: p.missing, Output: string(p.text), Ended: p.ends,
	}
	if p.instance != nil {
		r.Status = string(p.instance.Status)
	}
	return r
}

// add adds a part for people: under a head if the part before was somebody else's.
func (t *logTail) add(b *bytes.Buffer, p *logPart) {
	if t.last != p.id || t.fence != p.log.Fence {
		t.breakLine(b)
		if t.fence != 0 {
			b.WriteByte('\n')
		}
		head := p.id.Text()
		if p.log.Attempt > 1 {
			head += fmt.Sprintf(", attempt %d", p.log.Attempt)
		}
		t.say(b, head)
		t.last, t.fence = p.id, p.log.Fence
	}
	switch {
	case p.missing > 0 && p.joined:
		t.say(b, p.log.LeftOut())
	case p.missing > 0:
		t.say(b, step.BytesText(p.missing)+" are left out here")
	}
	text := p.text
	if t.clean {
		text = t.cleanPart(text)
	}
	if len(text) > 0 {
		b.Write(text)
		t.midline = text[len(text)-1] != '\n'
	}
	if p.ends {
		end := "it has ended"
		if p.instance != nil {
			end = firstLine(instanceText(p.instance, t.now))
		}
		t.say(b, p.id.Text()+": "+end)
	}
}

// say adds a line of berth's own.
func (t *logTail) say(b *bytes.Buffer, text string) {
	t.breakLine(b)
	fmt.Fprintf(b, "==> %s <==\n", clean(text))
}

// breakLine ends a line that is not whole.
func (t *logTail) breakLine(b *bytes.Buffer) {
	if len(t.rest) > 0 {
		b.WriteString(cleanLines(string(t.rest)))
		t.midline, t.rest = true, nil
	}
	if t.midline {
		b.WriteByte('\n')
		t.midline = false
	}
}

// cleanPart is [cleanLines] for a part: a character that is not whole waits for its rest.
func (t *logTail) cleanPart(text []byte) []byte {
	text = append(t.rest, text...)
	whole := len(text)
	if bytes.HasSuffix(text, []byte("\r")) { // the line may end so
		whole--
	}
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if at := len(text) - n; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				whole = at
			}
			break
		}
	}
	t.rest = bytes.Clone(text[whole:])
	return []byte(cleanLines(string(text[:whole])))
}

// end ends the last line.
func (t *logTail) end() {
	var b bytes.Buffer
	if t.format == "table" {
		t.breakLine(&b)
	}
	_, _ = t.out.Write(b.Bytes()) // what can't be written was told with what came before
}
