//go:build linux

package main

import (
	"io"
	"net"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/internal/store"
)

// proxy passes TCP on until it is cut. From then on who uses it hears nothing
// more, as behind a broken network.
type proxy struct {
	listener net.Listener
	to       string
	running  sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	isCut bool
}

func startProxy(to string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, to: to}
	p.running.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.to)
		if err != nil || !p.add(client, server) {
			client.Close()
			if server != nil {
				server.Close()
			}
			continue
		}
		p.running.Go(func() { pass(client, server) })
		p.running.Go(func() { pass(server, client) })
	}
}

func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
}

func (p *proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, conns...)
	return !p.isCut
}

// cut ends all connections and takes no more. It may be called again.
func (p *proxy) cut() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.isCut = true
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
}

func putRequest(key, value string) *pb.TxnRequest {
	return &pb.TxnRequest{Success: []*pb.RequestOp{store.Put(key, []byte(value), 0)}}
}
