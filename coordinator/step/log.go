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

// MaxOutput bounds the output of an attempt in etcd, in bytes.
const MaxOutput = 16 << 10

// Log is the stored output of an instance: the end of the output of one attempt.
type Log struct {
	// Attempt is the number of the attempt, and Fence its fencing token.
	Attempt int
	Fence   store.Fence
	// At is when the output was read.
	At time.Time
	// Ended states that the attempt has ended.
	Ended bool
	// Before is the number of bytes before Text.
	Before int64
	// Host and File locate the file with all of it, or with its beginning and end if Cut;
	// empty without a file.
	Host, File string
	Cut        bool
	// Text is the output, which may be binary.
	Text []byte
	// Revision is that of the key.
	Revision int64
}

// logHead is the first line of the value of a log. The text follows unencoded: as JSON it
// would be half as long again.
type logHead struct {
	store.V
	Attempt int         `json:"attempt"`
	Fence   store.Fence `json:"fence"`
	At      time.Time   `json:"at"`
	Ended   bool        `json:"ended,omitempty"`
	Before  int64       `json:"before,omitempty"`
	Host    string      `json:"host,omitempty"`
	File    string      `json:"file,omitempty"`
	Cut     bool        `json:"cut,omitempty"`
}

// Encode encodes a log.
func (l *Log) Encode() []byte {
	head := store.Encode(logHead{store.Now, l.Attempt, l.Fence, stampOf(l.At), l.Ended, l.Before, l.Host, l.File, l.Cut})
	value := make([]byte, 0, len(head)+1+len(l.Text))
	return append(append(append(value, head...), '\n'), l.Text...)
}

// DecodeLog decodes a log.
func DecodeLog(kv *mvccpb.KeyValue) (*Log, error) {
	key := string(kv.Key)
	head, text, ok := bytes.Cut(kv.Value, []byte("\n"))
	var h logHead
	if err := store.Decode(key, head, &h); err != nil {
		return nil, err
	}
	if !ok || h.Attempt < 1 || h.Fence < 1 || h.Before < 0 {
		return nil, &store.CorruptError{Key: key, Reason: errors.New("attempt, fence or before is out of range, or the text is missing")}
	}
	return &Log{
		Attempt: h.Attempt, Fence: h.Fence, At: h.At, Ended: h.Ended, Before: h.Before, Host: h.Host, File: h.File, Cut: h.Cut,
		Text: text, Revision: kv.ModRevision,
	}, nil
}

// End returns how many bytes the attempt has written.
func (l *Log) End() int64 { return l.Before + int64(len(l.Text)) }

// Since returns the output after an offset, and how many bytes are missing before it.
func (l *Log) Since(offset int64) (text []byte, missing int64) {
	switch {
	case offset >= l.End():
		return nil, 0
	case offset < l.Before:
		return l.Text, l.Before - offset
	}
	return l.Text[offset-l.Before:], 0
}

// LeftOut states how much comes before the text, and where that is; empty if nothing does.
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

// BytesText formats a number of bytes: 1 byte, 900 bytes, 28.6 MiB.
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

// Standing is the relation of a log to its instance.
type Standing int

// The relations.
const (
	// OfLast: it is of the last attempt, which has ended.
	OfLast Standing = iota + 1
	// SoFar: it is of the running attempt.
	SoFar
	// OfEarlier: it is of an attempt that has ended, but not the last one.
	OfEarlier
	// OfLost: it is of an attempt that was lost.
	OfLost
)

// Standing returns the relation of a log to its instance.
func (l *Log) Standing(i *Instance) Standing {
	running := i.Status == Running
	switch {
	case running && l.Fence == i.Fence():
		return SoFar
	case !running && l.Fence == i.EndFence:
		return OfLast
	case l.Ended || l.Fence == i.EndFence:
		return OfEarlier
	}
	return OfLost
}

// Log returns the stored output of an instance: of the last attempt that has ended, or was
// followed. Without output, that is a NotFound problem.
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

// DropLostFile drops the name of the file of an attempt that was lost: the worker removes
// that file with the folder of the attempt.
func (l *Log) DropLostFile(i *Instance) {
	if !l.Ended && l.Standing(i) != SoFar {
		l.dropFile()
	}
}

func (l *Log) dropFile() { l.Host, l.File, l.Cut = "", "", false }

// MaxFilesDropped bounds the files of one [Store.DropFiles], which is one request.
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
					continue // a log that cannot be read shows no name
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

// NoLog returns the problem that an instance has no stored output.
func NoLog(id store.StepID) error {
	return problem.New(problem.NotFound, "no output is kept of step instance %s of run %q: none was written yet, or it was longer ago than events are kept", id.Text(), id.Run)
}

// log returns the stored output of an instance; nil if there is none.
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
