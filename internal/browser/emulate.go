package browser

import (
	"os"
	"path/filepath"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/security"
)

// phone is the width up to which a viewport is that of a phone.
const phone = 600

// Viewport sets the size of the page. Narrow ones are phones: what the page says
// of its viewport counts there.
func (b *Browser) Viewport(width, height int) {
	b.t.Helper()
	b.width = width
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: int64(width), Height: int64(height), DeviceScaleFactor: 1, Mobile: width <= phone,
	})
}

// Dark sets which colour scheme the page is asked for. It moves as little as it
// can either way.
func (b *Browser) Dark(on bool) {
	b.t.Helper()
	b.dark = on
	scheme := "light"
	if on {
		scheme = "dark"
	}
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
}

// NoScript has pages that are loaded from now on run no scripts.
func (b *Browser) NoScript(on bool) {
	b.t.Helper()
	b.scripts = !on
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: on})
}

// Offline takes the network away, or gives it back: what is asked for meanwhile
// fails. Streams that are open go on, see [Wire].
func (b *Browser) Offline(on bool) {
	b.t.Helper()
	call(b, network.EmulateNetworkConditionsByRule, network.EmulateNetworkConditionsByRuleParams{
		MatchedNetworkConditions: []*network.Conditions{{Offline: on, DownloadThroughput: -1, UploadThroughput: -1}},
	})
	call(b, network.OverrideNetworkState, network.OverrideNetworkStateParams{Offline: on, DownloadThroughput: -1, UploadThroughput: -1})
}

// AnyCertificate makes certificates of any signer acceptable.
func (b *Browser) AnyCertificate() {
	b.t.Helper()
	call(b, security.SetIgnoreCertificateErrors, security.SetIgnoreCertificateErrorsParams{Ignore: true})
}

// Screenshot writes what the viewport shows to a file, as PNG.
func (b *Browser) Screenshot(path string) {
	b.t.Helper()
	shot := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng})
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, shot.Data, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
