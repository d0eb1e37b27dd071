package server

import (
	"fmt"
	"net"
	"slices"
	"testing"
)

func TestAnOriginHasAtMostHalfOfTheConnections(t *testing.T) {
	cs := newConns(100)
	var leaves []func()
	most := func(o origin) (n int) {
		for {
			leave, why := cs.enter(o)
			if leave == nil {
				if why == "" {
					t.Errorf("%s is refused without a reason", o.name)
				}
				return n
			}
			leaves = append(leaves, leave)
			n++
		}
	}
	got := []int{
		most(origin{name: "uid 1000"}), most(origin{name: "address 192.0.2.1"}), most(origin{name: "uid 1001"}),
		most(origin{name: "uid 0", own: true}), most(origin{name: "uid 0", own: true}),
	}
	// 16 of 100 are reserved; those that are left when the first has its half are the second's.
	if want := []int{50, 34, 0, 16, 0}; !slices.Equal(got, want) {
		t.Errorf("they have %v connections, want %v", got, want)
	}
	for _, leave := range leaves {
		leave()
	}
	if cs.all != 0 || len(cs.of) != 0 {
		t.Errorf("at the end %d are counted, of %v", cs.all, cs.of)
	}
	if got := most(origin{name: "uid 0", own: true}); got != 66 {
		t.Errorf("the user of the process has %d connections, want its half and the reserved ones", got)
	}
}

// from is a connection from an address.
type from struct {
	net.Conn
	addr net.TCPAddr
}

func (f from) RemoteAddr() net.Addr { return &f.addr }

func TestAddressesOfOneNetworkOfIPv6AreOneOrigin(t *testing.T) {
	of := func(addr string) string {
		return originOf(from{addr: net.TCPAddr{IP: net.ParseIP(addr), Port: 9}}, Peer{}).name
	}
	for _, same := range [][2]string{{"2001:db8::1", "2001:db8::ffff:1:2"}, {"192.0.2.1", "::ffff:192.0.2.1"}, {"127.0.0.1", "::1"}} {
		if of(same[0]) != of(same[1]) {
			t.Errorf("%s and %s are %s and %s", same[0], same[1], of(same[0]), of(same[1]))
		}
	}
	for _, other := range [][2]string{{"2001:db8::1", "2001:db8:0:1::1"}, {"192.0.2.1", "192.0.2.2"}} {
		if of(other[0]) == of(other[1]) {
			t.Errorf("%s and %s are both %s", other[0], other[1], of(other[0]))
		}
	}
}

func TestFewFilesAreWarnedAboutIfOneUserCannotWaitForAllItsClaims(t *testing.T) {
	for files, want := range map[uint64]bool{1024: true, 8191: true, 8192: false, 19_999: false, 1 << 63: false} {
		if tooFew(files) != want {
			t.Errorf("%d files are too few: %t", files, !want)
		}
	}
}

func TestConnectionsAreFewerThanTheFilesThatCanBeOpened(t *testing.T) {
	for files, want := range map[uint64]int{0: 2, 64: 32, 1024: 512, 19_999: 9_999, 20_000: maxConns, 1 << 63: maxConns} {
		if got := connsFor(files); got != want {
			t.Errorf("of %d files %d are for connections, want %d", files, got, want)
		}
	}
	if got := newConns(0); got.most != connsFor(openFiles()) || got.most == 0 {
		t.Errorf("by default there are %d connections", got.most)
	}
	if fmt.Sprint(newConns(4).reserved) != "2" {
		t.Error("of few connections more than half are reserved")
	}
}
