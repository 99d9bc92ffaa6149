package etcd

import (
	"bytes"
	"testing"
)

func TestBootstrapDataAreReadableWithTheirTokenOnly(t *testing.T) {
	sealed, err := seal("one", []byte("passwords"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, []byte("passwords")) {
		t.Error("the data are not encrypted")
	}
	if plain, err := open("one", sealed); err != nil || string(plain) != "passwords" {
		t.Errorf("got %q, %v", plain, err)
	}
	if plain, err := open("two", sealed); err == nil {
		t.Errorf("another token reads %q", plain)
	}
}

func TestTheKeyOfATokenIsThatOfK3s(t *testing.T) {
	// printf %s secret | sha256sum | cut -c1-12
	if got := bootstrapKey("secret"); got != "/bootstrap/2bb80d537b1d" {
		t.Errorf("got %s", got)
	}
}
