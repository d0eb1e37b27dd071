package embedtest

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/berthhq/berth/internal/store/embed"
)

// SetFull raises or ends the alarm of a server that it is full: then it takes deletes only. The alarm
// outlives the server in its data.
func SetFull(t testing.TB, s *embed.Server, full bool) {
	t.Helper()
	conn, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	members, err := conn.MemberList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	action := pb.AlarmRequest_DEACTIVATE
	if full {
		action = pb.AlarmRequest_ACTIVATE
	}
	_, err = pb.NewMaintenanceClient(conn.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{
		Action: action, Alarm: pb.AlarmType_NOSPACE, MemberID: members.Members[0].ID,
	})
	if err != nil {
		t.Fatal(err)
	}
}
