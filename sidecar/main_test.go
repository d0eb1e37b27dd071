package sidecar_test

import (
	"testing"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestMain(m *testing.M) {
	becomeAnother()
	claimForAnother()
	embedtest.ManyAtOnce(8, 4)
	embedtest.VerifyTestMain(m)
}
