package engine

import (
	"cmp"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// of returns which compares of a part have a text in their key.
func of(p part, text string) func(part, *pb.Compare) bool {
	return func(by part, c *pb.Compare) bool { return by == p && strings.Contains(string(c.Key), text) }
}

// opsOf returns which operations of a part have a text in their key.
func opsOf(p part, text string) func(part, *pb.RequestOp) bool {
	return func(by part, op *pb.RequestOp) bool {
		key := cmp.Or(string(op.GetRequestDeleteRange().GetKey()), string(op.GetRequestPut().GetKey()))
		return by == p && strings.Contains(key, text)
	}
}

// deletionsOf returns which deletions of a part have a text in their key.
func deletionsOf(p part, text string) func(part, *pb.RequestOp) bool {
	return func(by part, op *pb.RequestOp) bool {
		return op.GetRequestDeleteRange() != nil && opsOf(p, text)(by, op)
	}
}

// mutants are rules and connections that one of the schedules needs.
var mutants = map[string]fault{
	"an offer is committed though its key is gone":         {without: of(ofCommits, "/offers/")},
	"an offer in memory is committed under another role":   {without: of(ofCommits, "/dispatcher/role")},
	"a dispatcher that was replaced offers":                {without: of(ofDispatcher, "/dispatcher/role")},
	"the role is taken from any process":                   {without: of(ofSuccession, "/dispatcher/role")},
	"the role is taken from one that lives":                {without: of(ofSuccession, "/dispatcher/mark")},
	"a direct claim passes those that wait":                {without: of(ofCommits, "/pending/")},
	"a pool stops being pending as a claim begins to wait": {without: of(ofDispatcher, "/pending/")},
	"slots are taken under an earlier spec":                {without: of(ofCommits, "/spec")},
	"numbers are taken that are held":                      {without: of(ofCommits, "/slots/0")},
	"numbers are taken that a new block has":               {without: of(ofCommits, "/slots/b/")},
	"a whole pool is taken in which others were granted": {without: func(by part, c *pb.Compare) bool {
		return by == ofCommits && strings.HasSuffix(string(c.Key), "/slots/")
	}},
	"a demands key is put as it was not":                 {without: of(ofQueue, "/demands/")},
	"a demands key is deleted as it was not":             {without: of(ofCommits, "/demands/")},
	"a write of slots happens after it was fenced":       {without: of(ofCommits, "/guards/")},
	"a write of demands happens after it was fenced":     {without: of(ofQueue, "/guards/")},
	"a write of offers happens after it was fenced":      {without: of(ofDispatcher, "/guards/")},
	"offers outlive the role":                            {undone: opsOf(ofSuccession, "/offers/")},
	"the mark outlives the role":                         {undone: opsOf(ofSuccession, "/dispatcher/mark")},
	"no sign of life is put":                             {undone: opsOf(ofDispatcher, "/dispatcher/mark")},
	"nothing keeps a pool pending":                       {undone: opsOf(ofQueue, "/pending/")},
	"an offers key stays when it was committed":          {undone: opsOf(ofCommits, "/offers/")},
	"pools are not put as pending for a new dispatcher":  {missing: roleChanged},
	"the dispatcher is not shown what its instance took": {missing: ownOffersReported},
	"the dispatcher's instance has no offers":            {missing: ownOffersMade},
	"the queue does not show the role":                   {missing: roleOfDemands},
	"polls show no offers":                               {missing: offersPolled},
	"polls show no role":                                 {missing: rolePolled},
	"leases are not known to be lost":                    {missing: leasesLost},
	"pending pools do not wake the dispatcher":           {missing: pendingWakes},
	"a silent watch is not opened again":                 {missing: staleViews},
	"pools that are not known are not read":              {missing: unknownPools},
	"what happens while all is listed is dropped":        {missing: eventsWhileListed},
	"the offers are not watched":                         {missing: offersWatched},
	"nobody takes the role":                              {missing: succession},
}

// orderMutants are what crowds need.
var orderMutants = map[string]fault{
	"advance offers are not taken back":               {undone: deletionsOf(ofDispatcher, "/advance~")},
	"an advance offer is used though its key is gone": {without: of(ofCommits, "/advance~")},
}

func TestBothMachinesNeedTheirRules(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long, and has no second goroutine")
	}
	for name, f := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caught(t, name, func(seed uint64) *world { return schedule(seed, f) })
		})
	}
	for name, f := range orderMutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caught(t, name, func(seed uint64) *world { return crowd(seed, f) })
		})
	}
}

// firstCaught is where the search for a schedule begins, to save time: near the one that was found last.
var firstCaught = map[string]uint64{
	"pools are not put as pending for a new dispatcher":  243,
	"the queue does not show the role":                   132,
	"what happens while all is listed is dropped":        449,
	"the role is taken from one that lives":              213,
	"a write of offers happens after it was fenced":      51,
	"an offer is committed though its key is gone":       36,
	"advance offers are not taken back":                  322,
	"a demands key is deleted as it was not":             25,
	"a whole pool is taken in which others were granted": 472,
	"the offers are not watched":                         24,
}

// caught checks that one of 600 schedules goes wrong.
func caught(t *testing.T, name string, schedule func(seed uint64) *world) {
	for i := range uint64(600) {
		seed := (firstCaught[name] + i) % 600
		if w := schedule(seed); len(w.errs) > 0 {
			t.Logf("%s: caught by schedule %d: %s", name, seed, w.errs[0])
			return
		}
	}
	t.Error("no schedule needs it")
}
