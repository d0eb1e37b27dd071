package revoke_test

import (
	"testing"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestMain(m *testing.M) { embedtest.VerifyTestMain(m) }
