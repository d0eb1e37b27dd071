package ui

import (
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/text"
)

func valuesOf(t *testing.T, text string) url.Values {
	t.Helper()
	q, err := url.ParseQuery(text)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestAFilterLetsThroughWhatItSays(t *testing.T) {
	shore := newShore()
	for id, name := range map[string]string{"load-1": "Nightly load", "load-2": "Straße", "report": "load report"} {
		shore.put(id, record(run.Queued, func(r *run.Record) {
			r.Name, r.Tags = name, map[string]string{"env": "prod", "id": id}
			if id == "report" {
				r.Tags["env"] = "a=b"
			}
		}), false)
	}
	set := shore.set()
	for _, c := range []struct{ query, want string }{
		{"", "load-1 load-2 report"},
		{"q=", "load-1 load-2 report"},
		{"q=LOAD", "load-1 load-2 report"},
		{"q=nightly+l", "load-1"},
		{"q=STRASSE", ""},
		{"q=%20stra%C3%9Fe%20", "load-2"},
		{"q=load-1%0Anightly", ""}, // the id and the name are two
		{"tag=env%3Dprod", "load-1 load-2"},
		{"tag=env%3Da%3Db", "report"},
		{"tag=env%3Dprod&tag=id%3Dload-2&tag=", "load-2"},
		{"tag=env%3Dprod&tag=env%3Dprod", "load-1 load-2"},
		{"q=report&tag=env%3Dprod", ""},
		{"tag=nope%3D1", ""},
	} {
		f := parseRunFilter(valuesOf(t, c.query))
		if f.Wrong != "" {
			t.Errorf("%s: %s", c.query, f.Wrong)
		}
		got := idsOf(set.newest.only(&f).all)
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.query, got, c.want)
		}
	}
}

func TestAFilterThatIsNoneIsReported(t *testing.T) {
	for query, want := range map[string]string{
		"tag=env":                             `"env" is not a tag`,
		"tag=%3Dx":                            `"=x" is not a tag`,
		"tag=env%3D":                          `"env=" is not a tag`,
		"tag=env%3D*":                         `"env=*" is not a tag`,
		"tag=%00%3Dx":                         `"\x00=x" is not a tag`,
		"tag=env%3Da&tag=env%3Db":             `one value of the tag "env"`,
		"q=" + strings.Repeat("x", 257):       "has 257 bytes: use at most 256",
		"tag=k%3D" + strings.Repeat("x", 500): "is not a tag",
	} {
		f := parseRunFilter(valuesOf(t, query))
		if !strings.Contains(f.Wrong, want) || len(f.Wrong) > 300 {
			t.Errorf("%.40s: %q, want it to tell %q", query, f.Wrong, want)
		}
		if l := queueStateOf(newShore().set(), &f, listPlace{}); len(l.page.rows) > 0 {
			t.Errorf("%s shows runs", query)
		}
	}
}

func TestLinksChangeWhatTheySayAndKeepTheRest(t *testing.T) {
	r := httptest.NewRequest("GET", "/runs?q=a%26b&tag=env%3Dprod&tag=x%3D1&status=queued&after=1~2~0~0~z&other=3", nil)
	at := listAddressOf(r, "q", "tag", "status", "after")
	for _, c := range []struct{ what, got, want string }{
		{"another status", at.with("status", "running"), "/runs?q=a%26b&status=running&tag=env%3Dprod&tag=x%3D1"},
		{"any status", at.with("status", ""), "/runs?q=a%26b&tag=env%3Dprod&tag=x%3D1"},
		{"another tag", at.more(tagPair{"y", "<2>"}), "/runs?q=a%26b&status=queued&tag=env%3Dprod&tag=x%3D1&tag=y%3D%3C2%3E"},
		{"another value", at.more(tagPair{"env", "dev"}), "/runs?q=a%26b&status=queued&tag=x%3D1&tag=env%3Ddev"},
		{"one tag less", at.less(tagPair{"env", "prod"}), "/runs?q=a%26b&status=queued&tag=x%3D1"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", c.what, c.got, c.want)
		}
	}
	f := parseRunFilter(at.query)
	form := f.form(at, "status")
	if form.Action != "/runs" || form.Clear != "/runs?status=queued" {
		t.Errorf("%+v", form)
	}
	if d := cmp.Diff([]keptField{{"status", "queued"}, {"tag", "env=prod"}, {"tag", "x=1"}}, form.Kept); d != "" {
		t.Error(d)
	}
	if form := (runFilter{}).form(listAddress{"/runs", url.Values{}}); form.Clear != "" || form.Kept != nil {
		t.Errorf("%+v", form)
	}
	p := pagerOf(listPage{first: 51, of: 120, rows: make([]*listed, 50), hasPrevious: true, hasNext: true, next: listPlace{priority: -1, created: 7, id: "n"}}, at)
	rest := "q=a%26b&status=queued&tag=env%3Dprod&tag=x%3D1"
	want := listPager{First: 51, Last: 100, Of: 120, Begin: "/runs?" + rest, Previous: "/runs?" + rest, Next: "/runs?after=-1~7~0~0~n&" + rest}
	if d := cmp.Diff(want, p); d != "" {
		t.Error(d)
	}
}

func TestTagsAreShownUpToABound(t *testing.T) {
	tags := map[string]string{}
	for _, key := range strings.Split("abcdefghi", "") {
		tags[key] = "1"
	}
	list := atQueue.tags(tags)
	if len(list.Links) != tagsShown || list.More != 3 || list.Links[0] != (listLink{"a=1", "/queue?tag=a%3D1"}) {
		t.Errorf("%+v", list)
	}
	if list := atQueue.tags(nil); list.Links != nil || list.More != 0 {
		t.Errorf("%+v", list)
	}
	// A mark that turns the direction of writing is seen, and not followed.
	if list := atQueue.tags(map[string]string{"k": "a\u202eb"}); list.Links[0].Text != text.Visible("k=a\u202eb") || !strings.Contains(list.Links[0].Href, "%E2%80%AE") {
		t.Errorf("%+v", list)
	}
}
