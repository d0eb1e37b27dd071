// Package browser lets tests use pages as people do: in a real headless
// Chromium, which is driven over its debugging protocol.
//
// A test binary has one browser, started by the first [Open], and each test a
// tab with cookies and storage of its own. The package's TestMain wraps its
// tests in [Closing], which ends the browser before goroutines are counted.
//
// A tab watches its page all the time. What goes wrong there is a complaint:
// console messages, uncaught exceptions, requests that fail or are
// answered by an error, violations of the Content-Security-Policy, requests to
// hosts that the test has not gone to. A complaint fails the test at its end,
// unless [Browser.Expect] has taken it for expected; and what is expected has to
// have come.
//
// Names that end in .test are this machine, so that there can be other sites.
//
// Waiting is by events. [Browser.WaitFor] and what is built on it look when the
// page has changed, and give up after a time that no machine should need.
//
// [Browser.Audit] checks accessibility with axe-core. package.json pins its
// version, and `npm ci` in this folder installs it.
package browser
