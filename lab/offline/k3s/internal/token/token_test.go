package token

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var bundle = []byte("a CA in PEM")

func TestTheShortFormPinsNoCA(t *testing.T) {
	short, err := Parse("secret")
	if err != nil || short.Password != "secret" || short.User != "" || short.VerifyCA(bundle) != nil {
		t.Errorf("got %+v, %v", short, err)
	}
}

func TestTheSecureFormPinsItsCAAndNoOther(t *testing.T) {
	secure, err := Parse(Secure(bundle, Server, "pass:with:colons"))
	if err != nil || secure.User != Server || secure.Password != "pass:with:colons" {
		t.Fatalf("got %+v, %v", secure, err)
	}
	if err := secure.VerifyCA(bundle); err != nil {
		t.Error(err)
	}
	err = secure.VerifyCA([]byte("another"))
	if err == nil || !strings.Contains(err.Error(), "token CA hash does not match the Cluster CA certificate hash") {
		t.Errorf("got %v", err)
	}
}

func TestBrokenTokensAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "must not be empty",
		"K10abc::node:x":        "hash length",
		"K10":                   "invalid token format",
		"K10::node:":            "invalid token format",
		"K10::passwordwithout@": "invalid token format",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestAnAgentTokenJoinsNodesButNoServers(t *testing.T) {
	p := Passwords{Server: "s", Agent: "a"}
	for _, row := range []struct{ user, password, want string }{
		{Server, "s", Server}, {Node, "a", Node}, {Server, "a", ""}, {Node, "s", ""}, {"", "", ""}, {Node, "", ""},
	} {
		if got := p.Role(row.user, row.password); got != row.want {
			t.Errorf("%s/%s: got %q, want %q", row.user, row.password, got, row.want)
		}
	}
	if (Passwords{}).Role(Server, "") != "" {
		t.Error("a cluster without passwords let somebody in")
	}
}

func TestTokenFilesAreSecureReadableByRootOnlyAndReadBack(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []Passwords{{"s", "s"}, {"s", "a"}, {"s", "s"}} { // an agent token comes and goes
		if err := WriteFiles(dir, bundle, p); err != nil {
			t.Fatal(err)
		}
		kept, err := ReadServerFile(dir)
		if err != nil || kept != "s" {
			t.Fatalf("%+v: read back %q, %v", p, kept, err)
		}
		for name, user := range map[string]string{"token": "server:s", "node-token": "server:s", "agent-token": agentLine(p)} {
			path := filepath.Join(dir, name)
			raw, err := os.ReadFile(path)
			if err != nil || !strings.HasPrefix(string(raw), "K10") || !strings.HasSuffix(string(raw), "::"+user+"\n") {
				t.Errorf("%s: %q, %v", name, raw, err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", name, info.Mode(), err)
			}
		}
	}
}

func agentLine(p Passwords) string {
	if p.Agent == p.Server {
		return "server:" + p.Server
	}
	return "node:" + p.Agent
}
