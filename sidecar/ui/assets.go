package ui

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"time"
)

//go:embed templates static
var files embed.FS

// assetsPath is where what pages load is: below it a version, then a file.
const assetsPath = "/ui/"

// assets are the files that pages load, and their version: a hash of all.
var assets = readAssets()

type assetFiles struct {
	version string
	byName  map[string][]byte
}

func readAssets() assetFiles {
	a := assetFiles{byName: map[string][]byte{}}
	sum := sha256.New()
	entries, err := fs.ReadDir(files, "static")
	if err != nil {
		panic(err) // it is in the binary
	}
	for _, e := range entries {
		data, err := files.ReadFile(path.Join("static", e.Name()))
		if err != nil {
			panic(err)
		}
		a.byName[e.Name()] = data
		sum.Write([]byte(e.Name()))
		sum.Write(data)
	}
	a.version = hex.EncodeToString(sum.Sum(nil)[:8])
	return a
}

// url is where a file is, as it is now.
func (a assetFiles) url(name string) string { return assetsPath + a.version + "/" + name }

// sheets are the styles of a page: those of the frame, and its own if it has some.
func (a assetFiles) sheets(page string) []string {
	all := []string{a.url("berth.css")}
	if _, ok := a.byName[page+".css"]; ok {
		all = append(all, a.url(page+".css"))
	}
	return all
}

// assetTypes are the types of files, by the ends of their names. No others are served.
var assetTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// asset answers GET /ui/{version}/{file}. What an older page asks for is not what it was, so
// that is not kept by anybody.
func (p *Pages) asset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	data, ok := assets.byName[name]
	kind := assetTypes[path.Ext(name)]
	if !ok || kind == "" {
		p.refuse(w, r, notFound(r))
		return
	}
	w.Header().Set("Content-Type", kind)
	if r.PathValue("version") == assets.version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}
