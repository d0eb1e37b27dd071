package ui

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berthhq/berth/internal/problem"
)

const (
	signinPath, signoutPath = "/signin", "/signout"
	// toKey is the page to show after signing in.
	toKey = "to"
	// cookieLife is how long one stays signed in.
	cookieLife = 12 * time.Hour
	// maxName bounds a name, in bytes.
	maxName = 64
)

// cookieKey is the key that signs cookies: a change of the token ends them.
func cookieKey(token string) []byte {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("berth pages 1"))
	return mac.Sum(nil)
}

// cookieName has the browser refuse the cookie from anywhere but this server, where that can be.
func (p *Pages) cookieName() string {
	if p.cfg.Secure {
		return "__Host-berth"
	}
	return "berth"
}

// pass is the value of a cookie: a name and an end, signed.
func (p *Pages) pass(name string, ends time.Time) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(name)) + "." + strconv.FormatInt(ends.Unix(), 10)
	mac := hmac.New(sha256.New, p.key)
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// passed reads a pass, if it is one of ours and has not ended.
func (p *Pages) passed(value string, now time.Time) (name string, ok bool) {
	parts := strings.Split(value, ".")
	if len(parts) != 3 {
		return "", false
	}
	ends, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || now.Unix() >= ends {
		return "", false
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[0])
	if err != nil || !hmac.Equal([]byte(value), []byte(p.pass(string(text), time.Unix(ends, 0)))) {
		return "", false
	}
	return string(text), true
}

// SignedIn returns the name that the sender of a request signed in with.
func (p *Pages) SignedIn(r *http.Request) (name string, ok bool) {
	if p.cfg.Token == "" {
		return "", false
	}
	c, err := r.Cookie(p.cookieName())
	if err != nil {
		return "", false
	}
	return p.passed(c.Value, time.Now())
}

// Open reports whether a request needs no token: it is for signing in, or for files that the
// sign-in page loads.
func (p *Pages) Open(r *http.Request) bool {
	return r.URL.Path == signinPath || strings.HasPrefix(r.URL.Path, assetsPath)
}

// Wanted reports whether the client is a browser that shows the answer.
func (p *Pages) Wanted(r *http.Request) bool { return accepts(r, htmlType) }

// AskToSignIn answers a browser that has not signed in.
func (p *Pages) AskToSignIn(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	to := home
	if r.Method == http.MethodGet {
		to = addressOf(r.URL.Path, r.URL.Query())
	}
	http.Redirect(w, r, signinPath+"?"+url.Values{toKey: {to}}.Encode(), http.StatusSeeOther)
}

// signinData is what the page for signing in shows.
type signinData struct {
	Needed   bool // there is a token
	Signed   string
	Name, To string
	Problem  string
	MaxName  int
}

// askToSignIn answers GET /signin.
func (p *Pages) askToSignIn(w http.ResponseWriter, r *http.Request) {
	p.showSignIn(w, r, signinData{To: ownPath(r.URL.Query().Get(toKey))}, http.StatusOK)
}

func (p *Pages) showSignIn(w http.ResponseWriter, r *http.Request, d signinData, status int) {
	f := p.frameOf(r, "signin", false)
	d.Needed, d.MaxName = p.cfg.Token != "", maxName
	d.Signed, _ = p.SignedIn(r)
	f.Title, f.Data = "Sign in", d
	body, err := p.sets.render("signin", f)
	if err != nil {
		body, status = p.renderProblem(f, p.problemOf(r, err))
	}
	p.write(w, status, body)
}

// signIn answers POST /signin.
func (p *Pages) signIn(w http.ResponseWriter, r *http.Request) {
	if !p.ours(r) {
		p.refuse(w, r, crossSite())
		return
	}
	if p.cfg.Token == "" {
		http.Redirect(w, r, home, http.StatusSeeOther)
		return
	}
	d := signinData{Name: strings.TrimSpace(r.PostFormValue("name")), To: ownPath(r.PostFormValue(toKey))}
	got, want := sha256.Sum256([]byte(strings.TrimSpace(r.PostFormValue("token")))), sha256.Sum256([]byte(p.cfg.Token))
	right := subtle.ConstantTimeCompare(got[:], want[:]) == 1
	switch {
	case !right:
		d.Problem = "That is not the token. It is the one that this server was started with."
		p.showSignIn(w, r, d, problem.Unauthorized.Status())
	case !validName(d.Name):
		d.Problem = "The name must have 1 to " + strconv.Itoa(maxName) + " bytes of printable characters: your actions are recorded with it."
		p.showSignIn(w, r, d, problem.Invalid.Status())
	default:
		p.setCookie(w, p.pass(d.Name, time.Now().Add(cookieLife)), cookieLife)
		http.Redirect(w, r, d.To, http.StatusSeeOther)
	}
}

// signOut answers POST /signout.
func (p *Pages) signOut(w http.ResponseWriter, r *http.Request) {
	if !p.ours(r) {
		p.refuse(w, r, crossSite())
		return
	}
	p.setCookie(w, "", -1)
	to := home
	if p.cfg.Token != "" {
		to = signinPath
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

func (p *Pages) setCookie(w http.ResponseWriter, value string, life time.Duration) {
	seconds := int(life / time.Second)
	if life < 0 {
		seconds = -1
	}
	http.SetCookie(w, &http.Cookie{
		Name: p.cookieName(), Value: value, Path: "/", MaxAge: seconds,
		HttpOnly: true, Secure: p.cfg.Secure, SameSite: http.SameSiteStrictMode,
	})
}

func validName(s string) bool {
	if s == "" || len(s) > maxName || !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// ownPath returns an address of this server, or that of the home page: a redirect leads nowhere
// else.
func ownPath(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, "/") ||
		strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\x00\r\n\t") {
		return home
	}
	return addressOf(u.EscapedPath(), u.Query())
}

// devName is the name that actions of berth dev are recorded with.
const devName = "dev"

// who returns the name of the sender of a request; empty if they have not signed in.
func (p *Pages) who(r *http.Request) string {
	if name, ok := p.SignedIn(r); ok {
		return name
	}
	if p.cfg.Token == "" && p.cfg.Dev {
		return devName
	}
	return ""
}

// may reports whether the sender of a request may act.
func (p *Pages) may(r *http.Request) bool { return p.who(r) != "" }

// ours reports whether a page of this server sent a request, as browsers state with every POST.
func (p *Pages) ours(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site == "same-origin"
	}
	scheme := "http"
	if p.cfg.Secure {
		scheme = "https"
	}
	u, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && u.Scheme == scheme && strings.EqualFold(u.Host, r.Host)
}

// visitor is the sender of a request, for views and forms.
type visitor struct {
	who  string
	from string
}

type visitorKey struct{}

func (p *Pages) withVisitor(r *http.Request) context.Context {
	return context.WithValue(r.Context(), visitorKey{}, visitor{who: p.who(r), from: r.RemoteAddr})
}

func visitorOf(ctx context.Context) visitor {
	l, _ := ctx.Value(visitorKey{}).(visitor)
	return l
}

// whoOf returns the name of the visitor; empty if they may not act.
func whoOf(ctx context.Context) string { return visitorOf(ctx).who }

// fromOf returns the address of the visitor.
func fromOf(ctx context.Context) string { return visitorOf(ctx).from }
