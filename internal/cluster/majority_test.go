package cluster

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestAServerWithoutDataSaysWhatItWaitsFor(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	p := newAttempt(&Founding{Self: Member{Name: "a"}, Others: []Member{
		{Name: "b", ClientURL: "http://10.0.0.2:2379"}, {Name: "c", ClientURL: "http://10.0.0.3:2379"},
	}})
	const waits = "this server has no data: it joins a cluster that it finds, or forms one when all 3 servers in the setting cluster run. It waits for "
	for want, last := range map[string]map[string]error{
		waits + "b at http://10.0.0.2:2379 (not asked yet), c at http://10.0.0.3:2379 (not asked yet)": {"b": errNotAsked, "c": errNotAsked},
		waits + "c at http://10.0.0.3:2379 (connection refused)":                                       {"b": nil, "c": refused},
		"all 3 servers in the setting cluster run, none has data, and they are forming a cluster":      {"b": nil, "c": nil},
		"this server has no data, and can't join the cluster of b yet: too many learners": {
			"b": &joinError{"b", status.Error(codes.FailedPrecondition, "too many learners")}, "c": refused,
		},
	} {
		if got := p.missing(last); got != want {
			t.Errorf("with %v it says %q, want %q", last, got, want)
		}
	}
}

func TestAMemberSaysHowManyOthersItWaitsFor(t *testing.T) {
	silent := []string{fmt.Sprintf("b at http://10.0.0.2:7423 (%s)", brief(errors.New("no answer"))), "c at http://10.0.0.3:7423 (connection refused)"}
	for want, of := range map[string][]string{
		"etcd waits until 2 of its 3 members run. These do not answer: b at http://10.0.0.2:7423 (no answer), c at http://10.0.0.3:7423 (connection refused)": silent,
		"etcd waits for a leader: 2 of its 3 members run, and elect one":                                                                                      silent[:1],
		"etcd waits for a leader: 3 of its 3 members run, and elect one":                                                                                      nil,
	} {
		if got := awaited(3, of); got != want {
			t.Errorf("without %v it says %q, want %q", of, got, want)
		}
	}
	if got, want := awaited(2, silent[:1]), "etcd waits until 2 of its 2 members run. These do not answer: "+silent[0]; got != want {
		t.Errorf("of two it says %q, want %q", got, want)
	}
}
