package main

import (
	"crypto/tls"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/sidecar"
)

// sidecarConfig makes of the settings what dev and sidecar serve.
func sidecarConfig(s config.Settings, log hclog.Logger) (sidecar.Config, error) {
	o, err := options(s, log)
	if err != nil {
		return sidecar.Config{}, err
	}
	conf, err := s.ServerTLS()
	if err != nil {
		return sidecar.Config{}, err
	}
	reg := newRegistry()
	return sidecar.Config{
		Options: o,
		Listen:  s.Listen, Socket: s.Socket, TLS: conf, Token: s.Token.Reveal(), Names: serverNames(s, conf),
		RunRetention: s.RunRetention,
		Logger:       log, Registerer: reg, Gatherer: reg,
	}, nil
}

// serverNames are the names under which clients may know this server: those of
// the machine and of its certificate.
func serverNames(s config.Settings, conf *tls.Config) []string {
	names := []string{s.Host}
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	if conf == nil {
		return names
	}
	for _, cert := range conf.Certificates {
		if cert.Leaf != nil {
			names = append(names, cert.Leaf.DNSNames...)
			for _, ip := range cert.Leaf.IPAddresses { // of what passes connections on
				names = append(names, ip.String())
			}
		}
	}
	return names
}

// addresses are where a server is reached, in JSON.
type addresses struct {
	PID    int    `json:"pid"`
	HTTP   string `json:"http,omitempty"`
	Socket string `json:"socket,omitempty"`
	// Etcd and DataDir are the embedded etcd's.
	Etcd    string `json:"etcd,omitempty"`
	DataDir string `json:"data_dir,omitempty"`
}

// String lists the addresses of the server.
func (a addresses) String() string {
	return strings.Join(keep([]string{a.HTTP, a.Socket}, func(s string) bool { return s != "" }), ", ")
}

func addressesOf(s config.Settings, server *sidecar.Server) addresses {
	a := addresses{PID: os.Getpid()}
	if addr := server.Addr(); addr != nil {
		a.HTTP = "http://" + reachable(addr)
		if s.TLSCert != "" {
			a.HTTP = "https://" + reachable(addr)
		}
	}
	if s.Socket != "" {
		a.Socket = "unix://" + s.Socket
	}
	return a
}

// reachable writes a listener's address so that one can connect to it.
func reachable(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		_, port, _ := strings.Cut(addr.String(), "]:")
		if port == "" {
			_, port, _ = net.SplitHostPort(addr.String())
		}
		return net.JoinHostPort("localhost", port)
	}
	return addr.String()
}

// stopOnSignals passes INT, TERM and HUP to do, until the function that it returns is
// called. After the last that do wants, signals end the process.
//
// INT and TERM count also if this process was started to ignore them, as shells do with
// INT for what scripts run in the background. HUP counts then only if it means something
// of its own here, which is what upgrade says: under nohup it stays ignored otherwise.
func stopOnSignals(upgrade bool, do func(unix.Signal) (last bool)) (end func()) {
	signals, done, ended := make(chan os.Signal, 8), make(chan struct{}), make(chan struct{})
	wanted := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if upgrade || !signal.Ignored(unix.SIGHUP) {
		wanted = append(wanted, unix.SIGHUP)
	}
	ignored := slices.DeleteFunc(slices.Clone(wanted), func(s os.Signal) bool { return !signal.Ignored(s) })
	signal.Notify(signals, wanted...)
	go func() {
		defer close(ended)
		defer signal.Stop(signals)
		last := false
		for {
			select {
			case s := <-signals:
				if last {
					os.Exit(exitSignal + int(s.(unix.Signal)))
				}
				if last = do(s.(unix.Signal)); !last {
					continue
				}
				if len(ignored) == 0 {
					return
				}
				for _, s := range wanted { // without a handler, the others would be ignored again
					if !slices.Contains(ignored, s) {
						signal.Reset(s)
					}
				}
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}
