package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
)

const (
	// MaxBody bounds the bodies of requests in bytes, unless [Handler.Bodies] says
	// otherwise.
	MaxBody = 64 << 10
	// freeBody is up to which length a body takes no share of the memory for bodies: a
	// connection takes more. Nearly all claims are shorter.
	freeBody = 4 << 10
	// bodyTimeout bounds the wait for a body.
	bodyTimeout = 10 * time.Second
	// shareTimeout bounds each wait for a share of the memory for bodies, and for others of the same
	// identity to arrive: a run of 100,000 items is stored within a few seconds, and clients wait
	// longer than this.
	shareTimeout = 5 * time.Second
	// bodiesEach bounds the bodies of one identity that arrive at the same time.
	bodiesEach = 8
)

// Bounds of what a body holds. They are checked while it arrives.
const (
	// maxDepth bounds the nesting of a body: of the items of a run, which are nested 100 deep
	// at most, and of what is around them.
	maxDepth = 128
	// valueDepth is down to which depth values are decoded, each into some memory of its own.
	// In a run, an item has this depth; what it holds stays text.
	valueDepth = 4
	// valueCost is what a decoded value takes at most, in bytes, besides its text: an entry of
	// a map with a short name.
	valueCost = 64
	// maxSpan bounds the text of a value at valueDepth, in bytes: a script of 64 KiB, escaped.
	maxSpan = 512 << 10
)

// Limit bounds the bodies of requests for one path.
type Limit struct {
	// Bytes bounds the length.
	Bytes int64
	// Values bounds the names and values up to four levels deep, such as the items of a run;
	// 0 is no bound.
	Values int
}

// memory is what bodies of one size may take together, so that those that are small never
// wait behind those that are large. A body that has arrived waits for the memory that decoding
// takes, and holds that of its text meanwhile. Nothing waits the other way round.
type memory struct{ arriving, decoded *quota }

// The memory for bodies, in bytes: two of the largest can arrive while others are carried out,
// and one with the most values is decoded. With garbage it is twice as much. One identity can have
// half of it.
const (
	smallArriving, smallDecoded = 8 << 20, 8 << 20
	largeArriving, largeDecoded = 34 << 20, 40 << 20
)

func newMemory(arriving, decoded int64) memory {
	return memory{newQuota(arriving, arriving/2), newQuota(decoded, decoded/2)}
}

// memoryFor returns the memory for bodies of a length.
func (h *Handler) memoryFor(size int64) *memory {
	if size > MaxBody {
		return &h.large
	}
	return &h.small
}

// take takes a share of a quota for the sender of a request, for which it waits a bounded time.
func (h *Handler) take(ctx context.Context, of *quota, size int64) (share, error) {
	key := KeyOf(ctx)
	s, own, ok := of.take(ctx, shareTimeout, key, size)
	if ok {
		return s, nil
	}
	h.Metrics.Refused(boundBodies)
	switch who := problem.Clip(key); {
	case of == h.underWay:
		return s, problem.New(problem.TooManyRequests, "%d requests of %s are still sending their bodies, which is the most for one identity: send this one again later", of.each, who)
	case own:
		return s, problem.New(problem.TooManyRequests, "other requests of %s take the memory for bodies of this size that one identity can have: send this one again later", who)
	}
	return s, problem.New(problem.TooManyRequests, "other requests take all the memory for bodies of this size: send this one again later")
}

// Body is the body of a request, in memory. It takes shares of the memory for bodies until it is
// read to its end, or its request has ended.
type Body struct {
	data             []byte
	at               int // what was read of data
	arrived, decoded share
}

// BodyOf returns the body of a request to a [Handler]; nil if it has none.
func BodyOf(r *http.Request) *Body {
	b, _ := r.Body.(*Body)
	return b
}

// Bytes returns the text of the body.
func (b *Body) Bytes() []byte { return b.data }

// DropText gives the text up: it was decoded. The share of what was decoded is kept until the
// request has ended.
func (b *Body) DropText() {
	b.data, b.at = nil, 0
	b.arrived.end()
}

// Read reads. Who has read all has a copy, and bounds what it keeps.
func (b *Body) Read(p []byte) (int, error) {
	n := copy(p, b.data[b.at:])
	if b.at += n; b.at < len(b.data) {
		return n, nil
	}
	b.end()
	return n, io.EOF
}

// Close does nothing: the request ends the body.
func (*Body) Close() error { return nil }

func (b *Body) end() {
	b.DropText()
	b.decoded.end()
}

// takeBody reads the body of a request into memory, or refuses it; nil if it has none. The
// body has arrived in whole then, so that from then on a connection that is read from can only
// be one that the client has closed.
func (h *Handler) takeBody(w http.ResponseWriter, r *http.Request) (*Body, error) {
	if r.ContentLength == 0 {
		return nil, nil
	}
	limit, ok := h.Bodies[r.URL.Path]
	if !ok {
		limit = Limit{Bytes: MaxBody}
	}
	a := &arrival{h: h, r: r, limit: limit, deadline: http.NewResponseController(w)}
	err := a.read(w)
	a.underWay.end()
	if err == nil {
		r.Body = &a.body
		return &a.body, nil
	}
	a.body.end()
	var timeout net.Error
	var long *http.MaxBytesError
	var syntax *jsontext.SyntacticError
	switch {
	case errors.As(err, &long):
		err = problem.New(problem.TooLarge, "the body is too large: use at most %d bytes", limit.Bytes)
	case errors.As(err, &timeout) && timeout.Timeout():
		err = problem.New(problem.SlowRequest, "the body did not arrive within %s", bodyTimeout)
	case errors.As(err, new(*problem.Error)):
	case errors.As(err, &syntax) && h.Unreadable != nil:
		err = h.Unreadable(syntax)
	default:
		err = problem.New(problem.Malformed, "the body could not be read: %w", err)
	}
	return nil, err
}

// leaveUnread has the server close the connection after the answer, and not wait for what was
// not read of the body. It does so a moment later, so that the client gets the answer: a body
// that is too long is the one reason for that which it knows.
func leaveUnread(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	w.Header().Set("Connection", "close")
	if r.Header.Get("Expect") == "" { // otherwise the client waits for the answer
		_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
	}
}

// arrival reads and counts one body.
type arrival struct {
	h        *Handler
	r        *http.Request
	limit    Limit
	deadline interface{ SetReadDeadline(time.Time) error }

	from io.Reader
	body Body
	// underWay is a share of those that arrive at the same time.
	underWay share
	// counter counts what arrives, unless it is a form.
	counter *jsontext.Decoder
	values  int
	// shallow is where the last name or value ended that is at most valueDepth deep.
	shallow int64
}

// read reads the body.
func (a *arrival) read(w http.ResponseWriter) error {
	size := a.r.ContentLength
	if size > a.limit.Bytes {
		return &http.MaxBytesError{Limit: a.limit.Bytes}
	}
	form := isForm(a.r, a.h.Pages)
	if kind, _, err := mime.ParseMediaType(a.r.Header.Get("Content-Type")); size > freeBody && !form && (err == nil && kind != jsonType && kind != formType) {
		return mediaType(a.r)
	}
	if err := a.reserve(max(size, 1)); err != nil {
		return err
	}
	a.from = http.MaxBytesReader(w, a.r.Body, a.limit.Bytes)
	var err error
	if form || 0 < size && size <= freeBody {
		err = a.readAll()
		a.values = len(a.body.data) / 2 // "a&a&…"
	} else {
		a.counter = jsontext.NewDecoder(a, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
		err = a.count()
	}
	switch {
	case err != nil && !errors.As(err, new(*jsontext.SyntacticError)):
		return err
	case len(a.body.data) > 0 && !form && !isJSON(a.r, a.body.data):
		return mediaType(a.r)
	case err != nil:
		return err
	}
	if err := a.deadline.SetReadDeadline(time.Time{}); err != nil {
		return problem.New(problem.Internal, "%w", err)
	}
	a.underWay.end()
	if len(a.body.data) > freeBody {
		cost := int64(len(a.body.data) + valueCost*a.values)
		a.body.decoded, err = a.h.take(a.r.Context(), a.h.memoryFor(int64(cap(a.body.data))).decoded, cost)
	}
	return err
}

// mediaType refuses a body that is not JSON.
func mediaType(r *http.Request) error {
	return problem.New(problem.MediaType, "the body is %s: send JSON, as Content-Type: application/json", problem.Quote(r.Header.Get("Content-Type")))
}

// reserve makes space for a body of a length, which is that of the request; or for more of a
// body whose length is not known. The client has bodyTimeout from then on. While it waits for memory
// the body does not count as one that arrives.
func (a *arrival) reserve(size int64) error {
	if a.r.ContentLength < 0 {
		switch {
		case size <= freeBody:
			size = freeBody
		case size <= MaxBody:
			size = MaxBody
		default:
			size = a.limit.Bytes
		}
	}
	a.underWay.end()
	var arrived share
	if size > freeBody {
		if err := access.Of(a.r.Context()).AllowAny(fmt.Sprintf("a body of more than %d bytes", freeBody)); err != nil {
			return err
		}
		// What reads and counts has buffers, which are as long as the longest text.
		cost := size + min(size, 1<<20)
		var err error
		if arrived, err = a.h.take(a.r.Context(), a.h.memoryFor(size).arriving, cost); err != nil {
			return err
		}
	}
	a.body.data = append(make([]byte, 0, size), a.body.data...)
	a.body.arrived.end()
	a.body.arrived = arrived
	var err error
	if a.underWay, err = a.h.take(a.r.Context(), a.h.underWay, 1); err != nil {
		return err
	}
	if err := a.deadline.SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil {
		return problem.New(problem.Internal, "%w", err)
	}
	return nil
}

// Read reads what has arrived, and keeps it.
func (a *arrival) Read(p []byte) (int, error) {
	if a.counter != nil && int64(len(a.body.data))-a.shallow > maxSpan {
		return 0, problem.New(problem.TooLarge, "the body has a value or space of more than %d KiB in it", maxSpan>>10)
	}
	n, err := a.from.Read(p)
	if need := len(a.body.data) + n; need > cap(a.body.data) {
		if err := a.reserve(int64(need)); err != nil {
			return 0, err
		}
	}
	a.body.data = append(a.body.data, p[:n]...)
	return n, err
}

// readAll reads without counting.
func (a *arrival) readAll() error {
	var err error
	buf := a.body.data[:cap(a.body.data)]
	if a.r.ContentLength > 0 {
		n, err := io.ReadFull(a.from, buf)
		a.body.data = buf[:n]
		return err
	}
	_, err = io.Copy(io.Discard, struct{ io.Reader }{a})
	return err
}

// count reads and counts. It ends at the first bound that is exceeded, and at the first fault.
func (a *arrival) count() error {
	for d := a.counter; ; {
		depth := d.StackDepth()
		token, err := d.ReadToken()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		switch kind := token.Kind(); {
		case depth > valueDepth:
		case kind == '}' || kind == ']':
			a.shallow = d.InputOffset()
		default:
			a.shallow = d.InputOffset()
			if a.values++; a.limit.Values > 0 && a.values > a.limit.Values {
				return problem.New(problem.TooLarge, "the body has too many names and values: use at most %d, of those up to %d levels deep", a.limit.Values, valueDepth)
			}
		}
		if d.StackDepth() > maxDepth {
			return problem.New(problem.TooLarge, "the body is nested too deep: use at most %d levels", maxDepth)
		}
		if d.StackDepth() == 0 {
			return a.rest()
		}
	}
}

// rest reads what follows the value of a body, which must be space.
func (a *arrival) rest() error {
	d := a.counter
	if d.PeekKind() == 0 {
		_, err := d.ReadToken()
		if err == io.EOF {
			return nil
		}
		if !errors.As(err, new(*jsontext.SyntacticError)) {
			return err
		}
	}
	end := d.InputOffset()
	next := bytes.TrimLeft(a.body.data[end:], " \n\r\t")
	return &jsontext.SyntacticError{ByteOffset: end, Err: fmt.Errorf("invalid character %q after top-level value", next[:min(len(next), 1)])}
}

const (
	jsonType = "application/json"
	// formType is the type of forms, and that of data which curl sends by default.
	formType = "application/x-www-form-urlencoded"
)

// isForm reports whether a body is that of a form, sent to one of the pages.
func isForm(r *http.Request, pages Pages) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == formType && pages != nil && pages.Owns(r)
}

// isJSON reports whether a body is meant to be JSON. What curl sends says that it
// is a form, or nothing; a form of a browser never begins with a brace then, so
// that a page of another site can't pass one off as JSON.
func isJSON(r *http.Request, data []byte) bool {
	got := r.Header.Get("Content-Type")
	if got == jsonType {
		return true
	}
	kind, _, err := mime.ParseMediaType(got)
	if (got == "" || kind == formType) && bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		r.Header.Set("Content-Type", jsonType)
		return true
	}
	return err == nil && kind == jsonType
}
