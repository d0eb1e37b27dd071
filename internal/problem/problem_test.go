package problem_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/berthhq/berth/internal/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// declared reads the constants of type Code from the source, with their values.
func declared(t *testing.T) map[string]problem.Code {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "problem.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]problem.Code{}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Code" {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		all[spec.Names[0].Name] = problem.Code(value)
		return true
	})
	return all
}

func TestEveryCodeHasARowInTheTable(t *testing.T) {
	codes := declared(t)
	if len(codes) < 20 {
		t.Fatalf("%d codes were found in the source", len(codes))
	}
	rows := problem.Codes()
	if len(rows) != len(codes) {
		t.Errorf("the table has %d rows for %d codes", len(rows), len(codes))
	}
	names := map[problem.Code]string{}
	for name, code := range codes {
		if other, twice := names[code]; twice {
			t.Errorf("%s and %s are both %q", name, other, code)
		}
		names[code] = name
		if !slices.Contains(rows, code) {
			t.Errorf("%s (%q) has no row in the table", name, code)
		}
	}
}

func TestRowsMakeSense(t *testing.T) {
	exits := []int{problem.ExitFailure, problem.ExitTimeout, problem.ExitLost, problem.ExitRefused}
	titles := map[string]problem.Code{}
	for _, code := range problem.Codes() {
		if s := code.Status(); s < 400 || s > 599 {
			t.Errorf("%s: status %d is no problem's", code, s)
		}
		if !slices.Contains(exits, code.Exit()) {
			t.Errorf("%s: exit code %d is not among those documented", code, code.Exit())
		}
		if other, twice := titles[code.Title()]; twice || code.Title() == "" {
			t.Errorf("%s: title %q is empty, or that of %s", code, code.Title(), other)
		}
		titles[code.Title()] = code
		if s := string(code); s != strings.ToLower(s) || strings.ContainsAny(s, " -.") {
			t.Errorf("%q is not in snake case", s)
		}
		// What etcd or this process can't do now is worth another try; so it must
		// not look like a fault of the request.
		if s := code.Status(); code.Exit() == problem.ExitRefused && s >= 500 && code != problem.EtcdDenied {
			t.Errorf("%s is refused for good with status %d", code, s)
		}
	}
}

func TestTheCodesThatScriptsBranchOnStay(t *testing.T) {
	for code, want := range map[problem.Code][2]int{
		problem.NoCapacity:      {409, 75},
		problem.ClaimTimeout:    {409, 75},
		problem.ClaimLost:       {409, 76},
		problem.ClaimRevoked:    {409, 76},
		problem.PoolNotFound:    {404, 1},
		problem.ExceedsLimit:    {422, 77},
		problem.Invalid:         {422, 77},
		problem.IDInUse:         {409, 77},
		problem.EtcdUnavailable: {503, 1},
		problem.Internal:        {500, 1},
	} {
		if code.Status() != want[0] || code.Exit() != want[1] {
			t.Errorf("%s has status %d and exit code %d, want %v", code, code.Status(), code.Exit(), want)
		}
	}
}

func TestAnUnknownCodeIsAnInternalError(t *testing.T) {
	c := problem.Code("made_up")
	if c.Status() != 500 || c.Exit() != problem.ExitFailure || c.Title() != problem.Internal.Title() {
		t.Errorf("status %d, exit code %d, title %q", c.Status(), c.Exit(), c.Title())
	}
}

func TestProblemsSayWhatHappened(t *testing.T) {
	plain := problem.New(problem.PoolNotFound, "there is no pool %q", "db")
	if plain.Error() != `there is no pool "db"` || plain.Unwrap() != nil {
		t.Errorf("%q, caused by %v", plain, plain.Unwrap())
	}
	field := problem.Field("pools.db", "%d slots", 0)
	if field.Error() != "pools.db: 0 slots" || field.Code != problem.Invalid || field.Field != "pools.db" {
		t.Errorf("%q of code %s and field %q", field, field.Code, field.Field)
	}
}

func TestProblemsKeepTheirCause(t *testing.T) {
	err := fmt.Errorf("claiming: %w", problem.New(problem.EtcdUnavailable, "etcd is away: %w", io.ErrUnexpectedEOF))
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error("the cause is lost")
	}
	if problem.CodeOf(err) != problem.EtcdUnavailable {
		t.Errorf("the code is %s", problem.CodeOf(err))
	}
	var p *problem.Error
	if !errors.As(err, &p) || !strings.Contains(p.Message, "unexpected EOF") {
		t.Errorf("the problem is %v", p)
	}
}

func TestABareProblemIsASentinelOfItsCode(t *testing.T) {
	err := fmt.Errorf("a: %w", problem.New(problem.HostInUse, "in use by %d", 7))
	if !errors.Is(err, &problem.Error{Code: problem.HostInUse}) {
		t.Error("it is not a problem of its own code")
	}
	if errors.Is(err, &problem.Error{Code: problem.Invalid}) {
		t.Error("it is a problem of another code")
	}
	if errors.Is(err, problem.New(problem.HostInUse, "in use by %d", 8)) {
		t.Error("it is a problem with another message")
	}
	if errors.Is(err, io.EOF) {
		t.Error("it is no problem at all")
	}
	same := problem.New(problem.Invalid, "x")
	if !errors.Is(fmt.Errorf("b: %w", same), same) {
		t.Error("it is not itself")
	}
}

func TestTheFirstProblemInAChainTells(t *testing.T) {
	inner := problem.New(problem.EtcdFull, "full")
	outer := problem.New(problem.ClaimLost, "lost: %w", inner)
	if problem.CodeOf(outer) != problem.ClaimLost {
		t.Errorf("the code is %s", problem.CodeOf(outer))
	}
	if !errors.Is(outer, &problem.Error{Code: problem.EtcdFull}) {
		t.Error("the problem inside is not found")
	}
	if got := problem.CodeOf(errors.Join(io.EOF, inner)); got != problem.EtcdFull {
		t.Errorf("the code of joined errors is %s", got)
	}
	if problem.CodeOf(io.EOF) != problem.Internal || problem.CodeOf(nil) != problem.Internal {
		t.Error("what is no problem has another code than internal")
	}
}

func TestDetailLeavesTheOriginalAlone(t *testing.T) {
	p := problem.New(problem.NoCapacity, "full: %w", io.EOF)
	d := p.WithDetail(42)
	if p.Detail != nil || d.Detail != 42 || d.Code != p.Code || d.Message != p.Message || !errors.Is(d, io.EOF) {
		t.Errorf("%+v and %+v", p, d)
	}
}
