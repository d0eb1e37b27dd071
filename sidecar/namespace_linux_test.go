package sidecar_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar/api"
	"github.com/berthhq/berth/sidecar/client"
)

// claimsFor is set for a process that claims a slot for a process with a number: the socket, and the
// number.
const claimsFor, claimsPID = "BERTH_TEST_CLAIMS_FOR", "BERTH_TEST_CLAIMS_PID"

// claimForAnother is the main function of such a process. It prints the field that was refused.
func claimForAnother() {
	socket := os.Getenv(claimsFor)
	if socket == "" {
		return
	}
	pid, err := strconv.Atoi(os.Getenv(claimsPID))
	if err != nil {
		panic(err)
	}
	c, err := client.Dial("unix://"+socket, "")
	if err != nil {
		panic(err)
	}
	_, err = c.Claim(context.Background(), api.ClaimRequest{ID: "container", Pools: api.Slots{"db": 1}, PID: pid})
	var e *problem.Error
	if errors.As(err, &e) {
		fmt.Print(e.Code, " ", e.Field)
	}
	os.Exit(0)
}

func TestAPIDOfAContainerIsNotTheProcessOfTheHostWithTheSameNumber(t *testing.T) {
	needsUsers(t)
	r := single(t)
	r.pool("db", 1)
	victim := spawn(t, sleeper)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), claimsFor+"="+r.cfg.Socket, claimsPID+"="+strconv.Itoa(victim.pid()))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != string(problem.Invalid)+" pid" {
		t.Errorf("%s, %v", out, err)
	}
	if n := r.claimed("db"); n != 0 {
		t.Errorf("%d slots are held", n)
	}
	if !victim.lives() {
		t.Error("the process of the host has ended")
	}
}
