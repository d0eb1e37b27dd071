package ui

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/server"
)

const (
	signinPath, signoutPath = "/signin", "/signout"
	// toKey is the page to show after signing in.
	toKey = "to"
	// cookieLife is how long one stays signed in.
	cookieLife = 12 * time.Hour
)

// signature signs a text for a token: with the token the cookie ends. The key of this process
// is part of it, so that neither a guess of the token nor its hash makes a cookie.
func (p *Pages) signature(t access.Token, text string) string {
	mac := hmac.New(sha256.New, p.seal)
	for _, part := range []string{"cookie", t.Hash, text} {
		mac.Write([]byte(part))
		mac.Write([]byte{0})
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// cookieName has the browser refuse the cookie from anywhere but this server, where that can be.
func (p *Pages) cookieName() string {
	if p.cfg.Secure {
		return "__Host-berth"
	}
	return "berth"
}

// pass is the value of the cookie of a token: its name and an end, signed.
func (p *Pages) pass(t access.Token, ends time.Time) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(t.Name)) + "." + strconv.FormatInt(ends.Unix(), 10)
	return text + "." + p.signature(t, text)
}

// passed reads a pass, if it is of one of the tokens, and neither has ended.
func (p *Pages) passed(ts access.Tokens, value string, now time.Time) (access.Token, bool) {
	parts := strings.Split(value, ".")
	if len(parts) != 3 {
		return access.Token{}, false
	}
	ends, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || now.Unix() >= ends {
		return access.Token{}, false
	}
	name, err := base64.RawURLEncoding.DecodeString(parts[0])
	if err != nil {
		return access.Token{}, false
	}
	t, ok := ts.Named(string(name), now)
	if !ok || !hmac.Equal([]byte(value), []byte(p.pass(t, time.Unix(ends, 0)))) {
		return access.Token{}, false
	}
	return t, true
}

// SignedIn returns the token that the sender of a request has signed in with.
func (p *Pages) SignedIn(r *http.Request) (access.Token, bool) {
	if p.cfg.Tokens == nil {
		return access.Token{}, false
	}
	c, err := r.Cookie(p.cookieName())
	if err != nil {
		return access.Token{}, false
	}
	return p.passed(p.cfg.Tokens(), c.Value, time.Now())
}

// Wanted reports whether the client is a browser that shows the answer.
func (p *Pages) Wanted(r *http.Request) bool { return accepts(r, htmlType) }

// AskToSignIn answers a browser that has not signed in.
func (p *Pages) AskToSignIn(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	http.Redirect(w, r, signInLink(r), http.StatusSeeOther)
}

// signInLink is where the sender of a request signs in, to come back to what it was for.
func signInLink(r *http.Request) string {
	to := home
	if r.Method == http.MethodGet {
		q := r.URL.Query()
		q.Del(messageKey)
		q.Del(sealKey)
		to = addressOf(pathOf(r.URL), q)
	}
	return signinPath + "?" + url.Values{toKey: {to}}.Encode()
}

// canSignIn reports whether the sender of a request is anonymous, and could sign in.
func (p *Pages) canSignIn(r *http.Request) bool {
	return p.cfg.Tokens != nil && !access.Of(r.Context()).Authenticated()
}

// signinData is what the page for signing in shows.
type signinData struct {
	Needed  bool // there are tokens
	Signed  string
	To      string
	Problem string
}

// askToSignIn answers GET /signin.
func (p *Pages) askToSignIn(w http.ResponseWriter, r *http.Request) {
	p.showSignIn(w, r, signinData{To: OwnPath(r.URL.Query().Get(toKey))}, http.StatusOK)
}

func (p *Pages) showSignIn(w http.ResponseWriter, r *http.Request, d signinData, status int) {
	f := p.frameOf(r, "signin", false)
	d.Needed = p.cfg.Tokens != nil
	if t, ok := p.SignedIn(r); ok {
		d.Signed = t.Name
	}
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
	d := signinData{To: OwnPath(r.PostFormValue(toKey))}
	secret := strings.TrimSpace(r.PostFormValue("token"))
	if p.cfg.Tokens == nil {
		if secret == "" {
			http.Redirect(w, r, home, http.StatusSeeOther)
			return
		}
		d.Problem = "This server has no tokens, so that yours can't be verified."
		p.showSignIn(w, r, d, http.StatusUnauthorized)
		return
	}
	t, err := p.cfg.Attempts.Find(p.cfg.Tokens(), secret, server.AddressOf(r.Context()), time.Now())
	if err != nil {
		code := problem.CodeOf(err)
		if d.Problem = sentence(err.Error()); code == problem.TooManyRequests {
			w.Header().Set("Retry-After", strconv.Itoa(int(access.AttemptsWindow/time.Second)))
		}
		p.showSignIn(w, r, d, code.Status())
		return
	}
	p.setCookie(w, p.pass(t, time.Now().Add(cookieLife)), cookieLife)
	http.Redirect(w, r, d.To, http.StatusSeeOther)
}

// sentence writes the text of an error as a sentence.
func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] + "." }

// signOut answers POST /signout.
func (p *Pages) signOut(w http.ResponseWriter, r *http.Request) {
	if !p.ours(r) {
		p.refuse(w, r, crossSite())
		return
	}
	p.setCookie(w, "", -1)
	to := home
	if p.cfg.Tokens != nil {
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

// OwnPath returns an address of this server, or that of the home page: a redirect leads nowhere
// else. To browsers, // and /\ begin the name of a host, and tabs and line breaks in between count for
// nothing.
func OwnPath(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.IsAbs() || u.Host != "" {
		return home
	}
	for _, path := range []string{to, u.Path} { // as it is written, and as some programs decode it
		if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsFunc(path, unsafeInLinks) {
			return home
		}
	}
	return addressOf(u.EscapedPath(), u.Query())
}

// unsafeInLinks reports whether browsers read a character in a link as another one, or skip it.
func unsafeInLinks(r rune) bool { return r == '\\' || r < ' ' || r == '\x7f' }

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
