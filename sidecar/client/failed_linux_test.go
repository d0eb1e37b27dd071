package client

import (
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestAUserWhoMayNotUseTheSocketLearnsWhoMay(t *testing.T) {
	c := &Client{addr: "unix:///run/berth/berth.sock"}
	dial := func(err syscall.Errno) error {
		return c.failed(t.Context(), &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", err)})
	}
	if text := dial(syscall.EACCES).Error(); !strings.HasSuffix(text, "permission denied; join the group of the socket (usermod -aG), and log in again") {
		t.Errorf("the error is %q", text)
	}
	if text := dial(syscall.ECONNREFUSED).Error(); strings.Contains(text, "group") {
		t.Errorf("the error of a sidecar that does not run is %q", text)
	}
	c.addr = "http://127.0.0.1:7420"
	if text := dial(syscall.EACCES).Error(); strings.Contains(text, "group") {
		t.Errorf("where a firewall refuses, the error is %q", text)
	}
}
