package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthhq/berth/internal/store"
)

// fruit is a value as the packages above have them.
type fruit struct {
	store.V
	Name string         `json:"name"`
	N    int            `json:"n,omitempty"`
	Of   map[string]int `json:"of,omitempty"`
}

func TestValuesReadBack(t *testing.T) {
	want := fruit{V: store.Now, Name: "pear\x00\"é", N: -3, Of: map[string]int{"a": 1}}
	data := store.Encode(want)
	if !strings.HasPrefix(string(data), `{"v":1,`) {
		t.Errorf("a value does not begin with its version: %s", data)
	}
	var got fruit
	if err := store.Decode("k", data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(store.V{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestWhatCanNotBeEncodedIsAFaultOfTheProgram(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a value without a spelling was encoded")
		}
	}()
	store.Encode(struct {
		store.V
		F func()
	}{})
}

func TestValuesAreReadStrictly(t *testing.T) {
	for name, tc := range map[string]struct {
		data    string
		version int // of the VersionError that is wanted, -1 for another error
		says    string
	}{
		"nothing":                          {"", -1, "EOF"},
		"no JSON":                          {"pear", -1, "invalid character"},
		"cut off":                          {`{"v":1,"name":"pe`, -1, "unexpected EOF"},
		"of another type":                  {`[1]`, -1, "cannot unmarshal"},
		"a field of another type":          {`{"v":1,"name":7}`, -1, "name"},
		"an unknown field":                 {`{"v":1,"name":"pear","colour":"green"}`, -1, `"colour"`},
		"another value behind it":          {`{"v":1,"name":"pear"}{"v":1}`, -1, "behind its end"},
		"a bracket behind it":              {`{"v":1,"name":"pear"}]`, -1, "behind its end"},
		"a word behind it":                 {`{"v":1,"name":"pear"} x`, -1, "behind its end"},
		"no version":                       {`{"name":"pear"}`, 0, "version 0"},
		"null":                             {`null`, 0, "version 0"},
		"a newer version":                  {`{"v":2,"name":"pear"}`, 2, "version 2"},
		"a newer version with more fields": {`{"v":2,"name":"pear","colour":"green"}`, 2, "version 2"},
		"a newer version of other types":   {`{"v":2,"name":["pear"]}`, 2, "version 2"},
		"a version that is none":           {`{"v":"one"}`, -1, "v"},
	} {
		t.Run(name, func(t *testing.T) {
			var f fruit
			err := store.Decode("/b/some/key", []byte(tc.data), &f)
			var corrupt *store.CorruptError
			if !errors.As(err, &corrupt) || corrupt.Key != "/b/some/key" || !strings.Contains(err.Error(), "/b/some/key") {
				t.Fatalf("the error does not name the key: %v", err)
			}
			if !strings.Contains(err.Error(), tc.says) {
				t.Errorf("the error is %q, want it to say %q", err, tc.says)
			}
			var version *store.VersionError
			if is := errors.As(err, &version); is != (tc.version >= 0) || is && version.Version != tc.version {
				t.Errorf("the error is %v, want that of version %d", err, tc.version)
			}
		})
	}
}

func TestSpaceAroundAValueIsNothing(t *testing.T) {
	var f fruit
	if err := store.Decode("k", []byte(" {\"v\": 1, \"name\": \"pear\"}\n\t"), &f); err != nil || f.Name != "pear" {
		t.Errorf("%+v, %v", f, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"v":1,"name":"pear","n":2,"of":{"a":1}}`))
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`{"v":1} {}`))
	f.Add([]byte(`{"v":1,"colour":""}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var got fruit
		if err := store.Decode("k", data, &got); err != nil {
			var corrupt *store.CorruptError
			if !errors.As(err, &corrupt) || corrupt.Key != "k" {
				t.Errorf("the error does not name the key: %v", err)
			}
			return
		}
		if got.Version != store.Version {
			t.Errorf("version %d was read", got.Version)
		}
		var again fruit
		if err := store.Decode("k", store.Encode(got), &again); err != nil {
			t.Errorf("%+v does not read back: %v", got, err)
		}
	})
}
