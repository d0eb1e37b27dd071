package ui_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/instance"
)

var updateScreenshots = flag.Bool("update-screenshots", false, "take the pictures of docs/reference/pages.md again")

// images is the folder of the pictures, maxImage how big one may be.
const (
	images   = "../../docs/images"
	maxImage = 200_000
)

// shots are the pictures that docs/reference/pages.md shows.
var shots = []struct {
	name, path string
	height     int
}{
	{"pools", "/pools?open=gpu", 1080},
	{"queue", "/queue", 820},
	{"run", "/runs/nightly-2026-11-22?tab=timeline&step=load", 1080},
	{"hosts", "/hosts", 1000},
}

func TestThePicturesOfTheDocumentsAreThere(t *testing.T) {
	if *updateScreenshots {
		takeScreenshots(t)
	}
	for _, shot := range shots {
		path := filepath.Join(images, shot.name+".png")
		info, err := os.Stat(path)
		switch {
		case err != nil:
			t.Errorf("%v: go test ./sidecar/ui -update-screenshots takes it", err)
		case info.Size() > maxImage:
			t.Errorf("%s has %d bytes, more than %d", path, info.Size(), maxImage)
		}
	}
}

// takeScreenshots has some minutes of work go by, so that there is something to see.
func takeScreenshots(t *testing.T) {
	s := newSlowScene(t, 1700*time.Millisecond)
	s.to("/pools")
	for i := range 14 {
		if i > 2 {
			c, err := s.etl1.Lookup(t.Context(), fmt.Sprint("burst-", i-3))
			if err == nil {
				err = c.Release(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		s.holds(s.etl1, fmt.Sprint("burst-", i), instance.Slots{"api-quota": 3 + 4*(i%3), "scratch": 1 + i%3})
		<-time.After(5 * time.Second) // until the next sample
	}
	for _, shot := range shots {
		s.Viewport(1200, shot.height)
		s.to(shot.path)
		s.WaitFor("nothing is missing", `!document.querySelector("main").innerText.includes("not known")`)
		s.Screenshot(filepath.Join(images, shot.name+".png"))
	}
}
