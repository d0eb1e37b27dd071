package pool

import (
	"errors"
	"fmt"
	"strings"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
)

// missing is the cause of a problem with a pool that does not exist.
type missing struct{ name string }

// Error names the pool.
func (m *missing) Error() string { return fmt.Sprintf("there is no pool %q", m.name) }

// NoPool is the problem that there is no pool of a name.
func NoPool(name string) *problem.Error {
	return problem.New(problem.PoolNotFound, "%w", &missing{name})
}

// NoSuchPool is [NoPool] for a claim, and says how to create the pool.
func NoSuchPool(name string) *problem.Error {
	return problem.New(problem.PoolNotFound, "%w: create it with 'berth pools set %s LIMIT'", &missing{name}, name)
}

// Suggest returns an error with the name of the pool that was probably meant, if it says that there is no pool of
// some name. The function names returns the names to choose from.
func Suggest(err error, names func() []string) error {
	var m *missing
	if !errors.As(err, &m) {
		return err
	}
	near := text.Nearest(m.name, names())
	if near == "" {
		return err
	}
	p := *problem.Of(err)
	before, after, _ := strings.Cut(p.Message, m.Error())
	p.Message = fmt.Sprintf("%s%s: did you mean %q?%s", before, m, near, strings.Replace(after, ": create it", " Create it", 1))
	return &p
}

// Names returns the names of pools that were not deleted.
func Names(pools []Status) []string {
	var all []string
	for _, p := range pools {
		if !p.Deleted {
			all = append(all, p.Name)
		}
	}
	return all
}
