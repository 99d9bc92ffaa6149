// Package logx writes log lines in the shape of K3s's own (logrus text format), so that
// `journalctl -u k3s` reads the same and the same searches match.
package logx

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

var (
	mu    sync.Mutex
	out   io.Writer = os.Stderr
	debug bool
)

// SetDebug switches level=debug lines on or off (the --debug flag).
func SetDebug(on bool) { debug = on }

func write(level, format string, args ...any) {
	message := strings.TrimRight(fmt.Sprintf(format, args...), "\n")
	mu.Lock()
	defer mu.Unlock()
	_, _ = fmt.Fprintf(out, "time=%q level=%s msg=%q\n", time.Now().UTC().Format(time.RFC3339), level, message)
}

// Debugf logs only with --debug.
func Debugf(format string, args ...any) {
	if debug {
		write("debug", format, args...)
	}
}

// Infof logs an ordinary event.
func Infof(format string, args ...any) { write("info", format, args...) }

// Warnf logs something that may need a change.
func Warnf(format string, args ...any) { write("warning", format, args...) }

// Errorf logs a failure that is retried.
func Errorf(format string, args ...any) { write("error", format, args...) }

// Fatalf logs the failure that ends the process; the caller exits.
func Fatalf(format string, args ...any) { write("fatal", format, args...) }
