package pool

import (
	"testing"

	"github.com/berthhq/berth/internal/problem"
)

// Two hosts that claim one id at the same moment see it when the watch of the later
// one is ahead of its answer.
func TestTheSecondGrantOfAnIDIsRefusedIfTheFirstIsSeenBeforeTheAnswer(t *testing.T) {
	r := newRig(t, "one", "two")
	r.pool("db", 10)
	one, two := r.hosts[0], r.hosts[1]
	two.wedged = true
	second := two.ask("a", 1)
	call := two.next(r.now)
	first := one.ask("a", 1).got()
	resp, err := r.etcd.Txn(call.txn)
	if err != nil || !resp.Succeeded {
		t.Fatal("the hosts take slots of one group:", resp, err)
	}
	two.listen()
	two.answer(call, resp, err, r.now)
	two.wedged = false
	second.refused(problem.IDInUse)
	r.settle()
	r.wantUsed(1)
	if first.Context().Err() != nil {
		t.Errorf("the first claim has ended: %v", first.Err())
	}
	one.giveBack("a")
	r.clean()
}
