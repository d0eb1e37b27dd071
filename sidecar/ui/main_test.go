package ui_test

import (
	"testing"

	"github.com/berthhq/berth/internal/browser"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

func TestMain(m *testing.M) {
	embedtest.ManyAtOnce(4, 4) // a browser is busy with that many pages
	embedtest.VerifyTestMain(browser.Closing(m))
}
