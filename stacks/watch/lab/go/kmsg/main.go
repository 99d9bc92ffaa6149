// kmsg gives a host of the lab a kernel's log of its own: all hosts share one kernel, and its /dev/kmsg.
//
// /dev/kmsg becomes a terminal: a character device too, of which every read gives one line. What is written to
// it becomes a record, as in the kernel. One reader at a time gets the records; after it has closed the device,
// the next one gets all of them again.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"
)

const (
	device = "/dev/kmsg"
	// asm-generic/termbits.h, asm-generic/ioctls.h; the package syscall of Go lacks them.
	tcflsh  = 0x540B
	ciflush = 0
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kmsg:", err)
		os.Exit(1)
	}
}

func run() error {
	master, terminal, err := openTerminal()
	if err != nil {
		return err
	}
	if err := syscall.Mount(terminal.Name(), device, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", terminal.Name(), device, err)
	}
	closed, err := watchReaders(terminal.Name())
	if err != nil {
		return err
	}
	if err := started(); err != nil {
		return err
	}
	log := &kernelLog{master: master, terminal: terminal}
	failed := make(chan error, 2)
	go func() { failed <- log.follow() }()
	go func() { failed <- log.repeatAfter(closed) }()
	return <-failed
}

// kernelLog is the log since the start of this program.
type kernelLog struct {
	sync.Mutex
	master, terminal *os.File
	records          []string
}

// follow makes a record of each line that is written to the device.
func (l *kernelLog) follow() error {
	lines := bufio.NewScanner(l.master)
	for lines.Scan() {
		text := lines.Text()
		if _, rest, found := strings.Cut(text, ">"); found && strings.HasPrefix(text, "<") {
			text = rest
		}
		var now syscall.Timespec
		const monotonic = 1
		if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&now)), 0); errno != 0 {
			return errno
		}
		l.Lock()
		record := fmt.Sprintf("4,%d,%d,-;%s\n", len(l.records), now.Nano()/1000, text)
		l.records = append(l.records, record)
		_, err := l.master.WriteString(record)
		l.Unlock()
		if err != nil {
			return err
		}
	}
	return lines.Err()
}

// repeatAfter gives all records again whenever a reader has closed the device.
func (l *kernelLog) repeatAfter(closed *os.File) error {
	event := make([]byte, 4096)
	for {
		if _, err := closed.Read(event); err != nil {
			return err
		}
		l.Lock()
		err := ioctl(l.terminal, tcflsh, ciflush)
		if err == nil {
			_, err = l.master.WriteString(strings.Join(l.records, ""))
		}
		l.Unlock()
		if err != nil {
			return err
		}
	}
}

// openTerminal gives both ends of a terminal that changes nothing, and whose reads end with a line.
func openTerminal() (master, terminal *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	var unlocked, number int32
	if err := ioctl(master, syscall.TIOCSPTLCK, uintptr(unsafe.Pointer(&unlocked))); err != nil {
		return nil, nil, err
	}
	if err := ioctl(master, syscall.TIOCGPTN, uintptr(unsafe.Pointer(&number))); err != nil {
		return nil, nil, err
	}
	// The terminal of this process: it becomes that of no other one, which would get its signals.
	terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(int(number)), os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	settings := syscall.Termios{Cflag: syscall.CS8 | syscall.CREAD, Lflag: syscall.ICANON}
	err = ioctl(terminal, syscall.TCSETS, uintptr(unsafe.Pointer(&settings)))
	return master, terminal, err
}

// watchReaders gives a file with an event for each end of a reader.
func watchReaders(path string) (*os.File, error) {
	watch, err := syscall.InotifyInit1(syscall.IN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	_, err = syscall.InotifyAddWatch(watch, path, syscall.IN_CLOSE_NOWRITE)
	return os.NewFile(uintptr(watch), "inotify"), err
}

// started tells systemd that the device is there.
func started() error {
	systemd, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		return err
	}
	defer systemd.Close()
	_, err = systemd.Write([]byte("READY=1"))
	return err
}

func ioctl(file *os.File, request, argument uintptr) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, file.Fd(), request, argument); errno != 0 {
		return errno
	}
	return nil
}
