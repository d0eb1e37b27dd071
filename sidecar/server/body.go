package server

import (
	"bytes"
	"cmp"
	"errors"
	"mime"
	"net"
	"net/http"
	"time"

	"github.com/berthhq/berth/internal/problem"
)

const (
	// MaxBody bounds the bodies of requests in bytes, unless [Handler.Bodies] says
	// otherwise.
	MaxBody = 64 << 10
	// bodyTimeout bounds the wait for a body.
	bodyTimeout = 10 * time.Second
)

// formType is the type of forms, and that of data which curl sends by default.
const formType = "application/x-www-form-urlencoded"

// memoryBody is a body that was read already.
type memoryBody struct{ bytes.Reader }

// Close does nothing.
func (*memoryBody) Close() error { return nil }

// takeBody reads the body of a request into memory, or refuses it. The body has
// arrived in whole when it returns nil, so that from then on a connection that
// is read from can only be one that the client has closed.
func (h *Handler) takeBody(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	ctl := http.NewResponseController(w)
	if err := ctl.SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil {
		return problem.New(problem.Internal, "%w", err)
	}
	most := cmp.Or(h.Bodies[r.URL.Path], MaxBody)
	data, err := readBody(w, r, most)
	var timeout net.Error
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return problem.New(problem.TooLarge, "the body is too large: allowed are %d bytes", most)
	case errors.As(err, &timeout) && timeout.Timeout():
		return problem.New(problem.SlowRequest, "the body did not arrive within %s", bodyTimeout)
	case err != nil:
		return problem.New(problem.Malformed, "the body could not be read: %w", err)
	case len(data) > 0 && !isJSON(r, data) && !isForm(r, h.Pages):
		return problem.New(problem.MediaType, "the body is %s: send JSON, as Content-Type: application/json", problem.Quote(r.Header.Get("Content-Type")))
	}
	if err := ctl.SetReadDeadline(time.Time{}); err != nil {
		return problem.New(problem.Internal, "%w", err)
	}
	body := &memoryBody{}
	body.Reset(data)
	r.Body = body
	return nil
}

// readBody reads to the end. Of a body that says that it is too long it reads
// only so much that the server knows: it keeps the connection open for a moment
// then, so that its client gets the answer.
func readBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	if r.ContentLength <= most {
		buf := bytes.NewBuffer(make([]byte, 0, max(r.ContentLength, 0)+bytes.MinRead))
		_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, most))
		return buf.Bytes(), err
	}
	if r.Header.Get("Expect") == "" { // otherwise it waits for the answer
		if _, err := http.MaxBytesReader(w, r.Body, 0).Read(make([]byte, 1)); err != nil {
			return nil, err
		}
	}
	return nil, &http.MaxBytesError{Limit: most}
}

// isForm reports whether a body is that of a form, sent to one of the pages.
func isForm(r *http.Request, pages Pages) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == formType && pages != nil && pages.Owns(r)
}

// isJSON reports whether a body is meant to be JSON. What curl sends says that it
// is a form, or nothing; a form of a browser never begins with a brace then, so
// that a page of another site can't pass one off as JSON.
func isJSON(r *http.Request, data []byte) bool {
	const want = "application/json"
	got := r.Header.Get("Content-Type")
	if got == want {
		return true
	}
	kind, _, err := mime.ParseMediaType(got)
	if (got == "" || kind == formType) && bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		r.Header.Set("Content-Type", want)
		return true
	}
	return err == nil && kind == want
}
