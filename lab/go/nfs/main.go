// The lab's replacement for the kernel's NFS server and client, which this machine's kernel does not have: it reads
// the same files of exports(5), has exportfs and speaks NFSv3 in user space.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

const usage = `usage:
  nfs serve                        export what exportfs has exported, on port 2049
  nfs exportfs -ra | -s            as exportfs(8); also by the name exportfs
  nfs put|get ADDRESS FOLDER FILE  write stdin to a file of an export, or print it
`

func main() {
	words := os.Args[1:]
	if filepath.Base(os.Args[0]) == "exportfs" {
		words = append([]string{"exportfs"}, words...)
	}
	if err := run(words); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

func run(words []string) error {
	switch {
	case len(words) == 1 && words[0] == "serve":
		return serve(fmt.Sprintf(":%d", port), table)
	case len(words) == 2 && words[0] == "exportfs" && words[1] == "-ra":
		return reexport("/etc/exports", "/etc/exports.d", table)
	case len(words) == 2 && words[0] == "exportfs" && words[1] == "-s":
		return show(os.Stdout, table)
	case len(words) == 4 && words[0] == "put":
		return put(words[1], words[2], words[3], os.Stdin)
	case len(words) == 4 && words[0] == "get":
		return get(words[1], words[2], words[3], os.Stdout)
	}
	fmt.Fprint(os.Stderr, usage)
	os.Exit(64)
	return nil
}
