package engine_test

import (
	"testing"

	"github.com/berthhq/berth/pool/enginetest"
)

func TestTheEngine(t *testing.T) { enginetest.Run(t) }
