package cluster

import (
	"testing"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestMain(m *testing.M) {
	embedtest.ManyAtOnce(8, 2)
	embedtest.VerifyTestMain(m)
}
