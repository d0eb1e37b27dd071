package client

import (
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthhq/berth/internal/problem"
)

// Any user can put a socket into a shared folder, and read the tokens that come to it.
func TestNothingIsSentToASocketOfAnotherUserInASharedFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give the socket to another user")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, fs.ModeSticky|0o777); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	s.Listener.Close()
	s.Listener = l
	s.Start()
	defer s.Close()
	if err := os.Chown(path, 65533, -1); err != nil {
		t.Fatal(err)
	}
	c, err := Dial("unix://"+path, "secret")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ready(t.Context()); problem.CodeOf(err) != problem.Unavailable || !strings.Contains(err.Error(), "belongs to user") || asked > 0 {
		t.Errorf("%v; %d requests", err, asked)
	}
	if err := os.Chown(path, 0, -1); err != nil {
		t.Fatal(err)
	}
	if err := c.Ready(t.Context()); err != nil || asked != 1 {
		t.Errorf("a socket of root: %v; %d requests", err, asked)
	}
}
