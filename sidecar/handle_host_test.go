package sidecar_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/sidecar/api"
)

func TestHostsTellWhichQueuesTheyTakeFrom(t *testing.T) {
	d := newDock(t)
	d.readDocument()
	stopped := errors.New("stopped")
	ctx, stop := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	p := lease.NewPresence(lease.PresenceConfig{
		Backend: embedtest.Client(t, d.etcd), Keys: d.store.Keys, Host: "two", Instance: "worker",
		Role: "worker", Capacity: 4, Queues: []string{"gpu", "default"},
	})
	go func() { done <- p.Run(ctx) }()
	defer func() {
		stop(stopped)
		if err := <-done; !errors.Is(err, stopped) {
			t.Error(err)
		}
	}()
	<-p.Ready()
	answer := d.get("/v1/hosts")
	var list api.List[api.Host]
	decode(t, answer, &list)
	got := map[string][]string{}
	for _, h := range list.Items {
		got[h.Host] = h.Queues
	}
	if diff := cmp.Diff(map[string][]string{"one": nil, "two": {"gpu", "default"}}, got); diff != "" {
		t.Error(diff)
	}
	if n := bytes.Count(answer.body, []byte(`"queues":`)); n != 1 { // one that takes none says nothing of them
		t.Errorf("%s", answer.body)
	}
	byClient, err := d.client.Hosts(t.Context())
	if err != nil || !cmp.Equal(byClient, list.Items) {
		t.Errorf("by the client: %+v, %v", byClient, err)
	}
	if !d.doc.checked["list-hosts 200 OK"] {
		t.Error("it was not checked against the document")
	}
}
