package step

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

// MaxOutput bounds what is kept of an attempt's output, in bytes: it goes to etcd, so
// that it can be read on every host.
const MaxOutput = 16 << 10

// Log is what is kept of the output of an instance: the end of what one of its attempts
// has written.
type Log struct {
	// Attempt is the number of the attempt, and Fence its fence.
	Attempt int
	Fence   int64
	// At is when that was all that the attempt had written.
	At time.Time
	// Ended tells that the attempt has ended: nothing comes behind it.
	Ended bool
	// Before is how many bytes the attempt has written before Text.
	Before int64
	// Host and File are where a file is that has all of it, or its beginning and its end if it
	// is Cut; empty if none is kept, or not any more.
	Host, File string
	Cut        bool
	// Text is what was written, bytes of any kind.
	Text []byte
	// Revision is that of the key.
	Revision int64
}

// logHead is the first line of what stands in etcd of a log. The text follows it as it
// is: in JSON it would be half as long again.
type logHead struct {
	store.V
	Attempt int       `json:"attempt"`
	Fence   int64     `json:"fence"`
	At      time.Time `json:"at"`
	Ended   bool      `json:"ended,omitempty"`
	Before  int64     `json:"before,omitempty"`
	Host    string    `json:"host,omitempty"`
	File    string    `json:"file,omitempty"`
	Cut     bool      `json:"cut,omitempty"`
}

// Encode writes a log.
func (l *Log) Encode() []byte {
	head := store.Encode(logHead{store.Now, l.Attempt, l.Fence, stampOf(l.At), l.Ended, l.Before, l.Host, l.File, l.Cut})
	value := make([]byte, 0, len(head)+1+len(l.Text))
	return append(append(append(value, head...), '\n'), l.Text...)
}

// DecodeLog reads a log.
func DecodeLog(kv *mvccpb.KeyValue) (*Log, error) {
	key := string(kv.Key)
	head, text, ok := bytes.Cut(kv.Value, []byte("\n"))
	var h logHead
	if err := store.Decode(key, head, &h); err != nil {
		return nil, err
	}
	if !ok || h.Attempt < 1 || h.Fence < 1 || h.Before < 0 {
		return nil, &store.CorruptError{Key: key, Reason: errors.New("attempt, fence, before: they are not what they can be, or there is nothing behind them")}
	}
	return &Log{
		Attempt: h.Attempt, Fence: h.Fence, At: h.At, Ended: h.Ended, Before: h.Before, Host: h.Host, File: h.File, Cut: h.Cut,
		Text: text, Revision: kv.ModRevision,
	}, nil
}

// End is how many bytes the attempt has written.
func (l *Log) End() int64 { return l.Before + int64(len(l.Text)) }

// Since returns what is new to somebody who has seen the first bytes of the attempt, up to
// an offset, and how many bytes are left out before it.
func (l *Log) Since(offset int64) (text []byte, missing int64) {
	switch {
	case offset >= l.End():
		return nil, 0
	case offset < l.Before:
		return l.Text, l.Before - offset
	}
	return l.Text[offset-l.Before:], 0
}

// LeftOut tells how much comes before the text, and where that is; empty if nothing does.
func (l *Log) LeftOut() string {
	text := BytesText(l.Before) + " before this are left out"
	what := "all of it is"
	if l.Cut {
		what = "its beginning and its end are"
	}
	switch {
	case l.Before == 0:
		return ""
	case l.File == "":
		return text
	case l.Ended:
		return fmt.Sprintf("%s: %s on host '%s' for a day, in %s", text, what, l.Host, l.File)
	}
	return fmt.Sprintf("%s: %s on host '%s' while it runs, in %s", text, what, l.Host, l.File)
}

// BytesText writes a number of bytes as people do: 1 byte, 900 bytes, 28.6 MiB.
func BytesText(n int64) string {
	for i, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := int64(1) << (40 - 10*i); n >= size {
			return strings.TrimSuffix(strconv.FormatFloat(float64(n)/float64(size), 'f', 1, 64), ".0") + " " + unit
		}
	}
	if n == 1 {
		return "1 byte"
	}
	return strconv.FormatInt(n, 10) + " bytes"
}

// Standing is how a log stands to its instance.
type Standing int

// The standings.
const (
	// OfLast: it is of the last attempt, which has ended.
	OfLast Standing = iota + 1
	// SoFar: it is of the attempt that runs now.
	SoFar
	// OfEarlier: it is of an attempt that has ended, and the last one has written nothing, or
	// runs, or was lost.
	OfEarlier
	// OfLost: it is of an attempt that was lost, and was seen before that.
	OfLost
)

// Standing tells how a log stands to its instance.
func (l *Log) Standing(i *Instance) Standing {
	running := i.Status == Running
	switch {
	case running && l.Fence == i.Revision:
		return SoFar
	case !running && l.Fence == i.EndFence:
		return OfLast
	case l.Ended || l.Fence == i.EndFence:
		return OfEarlier
	}
	return OfLost
}

// Log returns the end of what an attempt of an instance has written: the last one that has
// ended, or was looked at. If nothing is kept, that is a NotFound problem.
func (s Store) Log(ctx context.Context, id store.StepID) (*Log, error) {
	seen, err := s.See(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case seen.Log == nil:
		return nil, NoLog(id)
	}
	return seen.Log, nil
}

// DropLostFile drops the name of the file of an attempt whose end was never reported and
// that does not run: the worker removes that file with the folder of the attempt.
func (l *Log) DropLostFile(i *Instance) {
	if !l.Ended && l.Standing(i) != SoFar {
		l.dropFile()
	}
}

func (l *Log) dropFile() { l.Host, l.File, l.Cut = "", "", false }

// MaxFilesDropped bounds the files of one [Store.DropFiles]: the logs of all are in one
// request.
const MaxFilesDropped = 32

// DropFiles drops the names of files of a host from the logs of instances, before the files
// are removed. A log that names no file, or another one, stays as it is.
func (s Store) DropFiles(ctx context.Context, host string, files map[string]store.StepID) error {
	var reads []*pb.RequestOp
	for _, id := range files {
		reads = append(reads, store.Get(s.Keys.Log(id)))
	}
	_, err := store.Change(ctx, "the names of files with output could not be dropped", func(ctx context.Context) (struct{}, error) {
		var none struct{}
		resp, err := s.Backend.Txn(ctx, &pb.TxnRequest{Success: reads})
		if err != nil {
			return none, err
		}
		var cmps []*pb.Compare
		var puts []*pb.RequestOp
		done := map[string]bool{} // several files may be of attempts of one instance
		for _, r := range resp.Responses {
			for _, kv := range r.GetResponseRange().Kvs {
				key := string(kv.Key)
				l, err := DecodeLog(kv)
				if err != nil || done[key] || l.Host != host || l.File == "" || s.Keys.Log(files[l.File]) != key {
					continue // of one that can't be read nobody learns the name
				}
				l.dropFile()
				done[key] = true
				cmps = append(cmps, store.ModEquals(key, kv.ModRevision))
				puts = append(puts, store.Put(key, l.Encode(), store.LeaseID(kv.Lease)))
			}
		}
		if len(puts) == 0 {
			return none, nil
		}
		_, err = store.Commit(ctx, s.Backend, cmps, puts...)
		return none, err
	})
	return err
}

// NoLog tells that no output of an instance is kept.
func NoLog(id store.StepID) error {
	return problem.New(problem.NotFound, "no output is kept of step instance %s of run %q: none was written yet, or it was longer ago than events are kept", id.Text(), id.Run)
}

// log reads what is kept of an instance's output, nil if that is nothing.
func (s Store) log(ctx context.Context, id store.StepID) (*Log, error) {
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Log(id))})
	if err != nil {
		return nil, store.Problem(noOutput, err)
	}
	if len(resp.Kvs) == 0 {
		return nil, nil
	}
	l, err := DecodeLog(resp.Kvs[0])
	if err != nil {
		return nil, store.Problem(noOutput, err)
	}
	return l, nil
}

const noOutput = "the output could not be read"
