package child

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The file trust is one short line that is overwritten in place: a version, until
// when the command may run, in nanoseconds of the boot clock, and a checksum of
// both. A reader who comes in the middle of a write sees that, and keeps what it
// knew. It needs no disk space to be written anew.
const trustFormat = "v1 %020d"

func encodeTrust(until time.Duration) []byte {
	head := fmt.Sprintf(trustFormat, max(0, until))
	return fmt.Appendf(nil, "%s %08x\n", head, crc32.ChecksumIEEE([]byte(head)))
}

func decodeTrust(data []byte) (time.Duration, error) {
	fields := strings.Fields(string(data))
	if len(fields) == 3 {
		n, err := strconv.ParseInt(fields[1], 10, 64)
		if until := time.Duration(n); err == nil && string(encodeTrust(until)) == string(data) {
			return until, nil
		}
	}
	return 0, &FileError{Name: trustName, Reason: errors.New("it is not a time with its checksum")}
}

// createTrust makes the file.
func createTrust(dir string, until time.Duration) error {
	return os.WriteFile(filepath.Join(dir, trustName), encodeTrust(until), 0o600)
}

// putTrust overwrites the file, which must be there.
func putTrust(dir string, until time.Duration) error {
	f, err := os.OpenFile(filepath.Join(dir, trustName), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(encodeTrust(until), 0)
	return errors.Join(err, f.Close())
}

// readTrust reads the file.
func readTrust(dir string) (time.Duration, error) {
	data, err := os.ReadFile(filepath.Join(dir, trustName))
	if err != nil {
		return 0, err
	}
	return decodeTrust(data)
}
