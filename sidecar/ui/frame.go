package ui

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
)

// frame is what templates get: what a page shows, and the rest of the page.
type frame struct {
	Title string
	Data  any

	// Who is the identity of the visitor, and Open reports that everyone may do everything.
	Who  string
	Open bool
	Now  time.Time
	// Live reports that it is rendered for a stream: times are exact, and nothing differs
	// only because time has passed.
	Live bool
	// Plain reports that the page can load no files, since the visitor is refused those too.
	Plain bool

	Nav     []navLink
	Sheets  []string
	Script  string
	Icon    string
	Message string // the result of an action
	// Refresh is the address of the page; LiveURL is the same if the page is live.
	Refresh, LiveURL string
	// SignIn is where to sign in; empty if the visitor can't or has. SignOut is where to sign
	// out.
	SignIn, SignOut string

	by    inspect.Operator // has only who it is
	path  string
	query url.Values
}

// MayOperate reports whether the visitor may operate a pool.
func (f *frame) MayOperate(pool string) bool { return f.by.MayOperate(pool) == nil }

// MayRevoke reports whether the visitor may revoke a claim.
func (f *frame) MayRevoke(h holderRow) bool {
	return f.by.MayRevokeHeld(h.Holder, h.Pools) == nil
}

// MayRevokeAny reports whether they may revoke one of the claims.
func (f *frame) MayRevokeAny(all []holderRow) bool { return slices.ContainsFunc(all, f.MayRevoke) }

// MayChange reports whether the visitor may cancel and retry a run that an identity has submitted.
func (f *frame) MayChange(submittedBy string) bool { return f.by.MayChangeRun(submittedBy) == nil }

// MayChangeAny reports whether they may change one of the runs.
func (f *frame) MayChangeAny(submitters []string) bool {
	return slices.ContainsFunc(submitters, f.MayChange)
}

// navLink is a page in the navigation.
type navLink struct {
	Name, URL string
	Current   bool
}

// frameOf is the frame of a request, for a page of that name. The page may be none of the
// list: that of an error.
func (p *Pages) frameOf(r *http.Request, name string, live bool) *frame {
	id := access.Of(r.Context())
	f := &frame{
		Who: id.String(), Open: p.cfg.Open, by: inspect.Operator{PoolOperator: audit.PoolOperator{By: audit.Caller{Identity: id}}}, Now: time.Now(), Live: live,
		Sheets: assets().sheets(name), Script: assets().url("berth.js"), Icon: assets().url("icon.svg"),
		path: pathOf(r.URL), query: r.URL.Query(),
	}
	f.Message = p.messageIn(f.query)
	delete(f.query, messageKey)
	delete(f.query, sealKey)
	f.Refresh = addressOf(f.path, f.query)
	current := name
	for _, pg := range p.all {
		if pg.name == name && pg.under != "" {
			current = pg.under
		}
	}
	for _, pg := range p.all {
		if pg.nav != "" {
			_, at, _ := strings.Cut(pg.pattern, " ")
			f.Nav = append(f.Nav, navLink{Name: pg.nav, URL: at, Current: pg.name == current})
		}
	}
	if _, in := p.SignedIn(r); in && id.Kind == access.TokenBearer {
		f.SignOut = signoutPath
	} else if p.canSignIn(r) && r.URL.Path != signinPath {
		f.SignIn = signInLink(r)
	}
	return f
}

// pathOf returns the path of a request as it is in a link. One that begins with two slashes would be
// the address of another host there.
func pathOf(u *url.URL) string { return "/" + strings.TrimLeft(u.EscapedPath(), "/") }

// addressOf is a path with a query.
func addressOf(path string, query url.Values) string {
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// templates are those of each page, parsed when they are first needed: once for whole pages,
// once for streams, in which times are exact.
type templates struct {
	mu     sync.Mutex // guards parsed
	parsed map[templateKey]*template.Template
}

type templateKey struct {
	page string
	live bool
}

func newTemplates() *templates {
	return &templates{parsed: map[templateKey]*template.Template{}}
}

// of returns the templates of a page.
func (t *templates) of(page string, live bool) (*template.Template, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := templateKey{page, live}
	if set := t.parsed[key]; set != nil {
		return set, nil
	}
	set, err := parseTemplates(page, live)
	if err == nil {
		t.parsed[key] = set
	}
	return set, err
}

// parseTemplates parses the layout, the parts of all pages, the page, and its parts.
func parseTemplates(page string, live bool) (*template.Template, error) {
	names := []string{"templates/layout.html", "templates/" + page + ".html"}
	for _, pattern := range []string{"templates/part_*.html", "templates/" + page + "_*.html"} {
		parts, err := fs.Glob(files, pattern)
		if err != nil {
			return nil, err
		}
		names = append(names, parts...)
	}
	set, err := template.New("").Funcs(funcs(live)).ParseFS(files, names...)
	if err != nil {
		return nil, fmt.Errorf("the page %s: %w", page, err)
	}
	return set, nil
}

// render renders a page: all of it, or of a live one the main part.
func (t *templates) render(page string, f *frame) ([]byte, error) {
	set, err := t.of(page, f.Live)
	if err != nil {
		return nil, err
	}
	part := "layout"
	if f.Live {
		part = "main"
	}
	var out bytes.Buffer
	if err := set.ExecuteTemplate(&out, part, f); err != nil {
		return nil, fmt.Errorf("the page %s: %w", page, err)
	}
	return out.Bytes(), nil
}

//go:embed templates static
var files embed.FS

// assetsPath is where what pages load is: below it a version, then a file.
const assetsPath = "/ui/"

type assetFiles struct {
	version string
	byName  map[string][]byte
}

// assets returns the files that pages load, and their version: a hash of all.
var assets = sync.OnceValue(func() assetFiles {
	a := assetFiles{byName: map[string][]byte{}}
	sum := sha256.New()
	entries, err := fs.ReadDir(files, "static")
	if err != nil {
		panic(err) // it is in the binary
	}
	for _, e := range entries {
		data, err := files.ReadFile(path.Join("static", e.Name()))
		if err != nil {
			panic(err)
		}
		a.byName[e.Name()] = data
		sum.Write([]byte(e.Name()))
		sum.Write(data)
	}
	a.version = hex.EncodeToString(sum.Sum(nil)[:8])
	return a
})

// url is where a file is, as it is now.
func (a assetFiles) url(name string) string { return assetsPath + a.version + "/" + name }

// sheets are the styles of a page: those of the frame, and its own if it has some.
func (a assetFiles) sheets(page string) []string {
	all := []string{a.url("berth.css")}
	if _, ok := a.byName[page+".css"]; ok {
		all = append(all, a.url(page+".css"))
	}
	return all
}

// assetTypes are the types of files, by the ends of their names. No others are served.
var assetTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// asset answers GET /ui/{version}/{file}. A file of another version is not cached: it is not
// the one that the page was made for.
func (p *Pages) asset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	data, ok := assets().byName[name]
	kind := assetTypes[path.Ext(name)]
	if !ok || kind == "" {
		p.refuse(w, r, notFound(r))
		return
	}
	w.Header().Set("Content-Type", kind)
	if r.PathValue("version") == assets().version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// The page after an action shows its result. The message is in the address, with a seal, so that
// a link of another site can't put words on a page.
const (
	messageKey = "said"
	sealKey    = "seal"
)

func newSeal() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // it never fails
	return key
}

func (p *Pages) sealOf(message string) string {
	mac := hmac.New(sha256.New, p.seal)
	mac.Write([]byte(message))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// withMessage adds a message to the address of a page.
func (p *Pages) withMessage(to, message string) string {
	u, err := url.Parse(to)
	if err != nil {
		return to
	}
	q := u.Query()
	q.Set(messageKey, message)
	q.Set(sealKey, p.sealOf(message))
	u.RawQuery = q.Encode()
	return u.String()
}

// messageIn returns the message in the query of a page; empty if there is none with our seal.
func (p *Pages) messageIn(query url.Values) string {
	message := query.Get(messageKey)
	if message == "" || !hmac.Equal([]byte(query.Get(sealKey)), []byte(p.sealOf(message))) {
		return ""
	}
	return message
}
