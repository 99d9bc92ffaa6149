// Package nodepassword lets a Node's name be used only by the machine that joined under it first: each machine has
// a random password, and the cluster keeps its hash in a Secret (k3s-io/k3s pkg/nodepassword).
package nodepassword

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"

	"golang.org/x/crypto/scrypt"
)

// K3s's parameters (pkg/authenticator/hash): 2^15 rounds, about 0.1 s of a core.
const (
	saltLength = 8
	keyLength  = 64
	logN       = 15
	blockSize  = 8
	parallel   = 1
)

const hashFormat = "$1:%x:%d:%d:%d:%s"

// Hash is a password as the Secret keeps it: $1:SALT:15:8:1:KEY.
func Hash(password string) (string, error) {
	salt := make([]byte, saltLength)
	if _, err := rand.Read(salt); err != nil {
		return "", err
	}
	key, err := derive(password, salt, logN, blockSize, parallel)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(hashFormat, salt, logN, blockSize, parallel, base64.RawStdEncoding.EncodeToString(key)), nil
}

var errHashMismatch = errors.New("hash does not match")

// matches returns nil if the hash was made from the password.
func matches(hash, password string) error {
	var salt []byte
	var n, r, p int
	var encoded string
	if _, err := fmt.Sscanf(hash, hashFormat, &salt, &n, &r, &p, &encoded); err != nil {
		return fmt.Errorf("not a hash of a node password: %w", err)
	}
	want, err := base64.RawStdEncoding.DecodeString(encoded)
	if err != nil {
		return fmt.Errorf("not a hash of a node password: %w", err)
	}
	got, err := derive(password, salt, n, r, p)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(want, got) != 1 {
		return errHashMismatch
	}
	return nil
}

func derive(password string, salt []byte, n, r, p int) ([]byte, error) {
	if n < 1 || n > 20 {
		return nil, fmt.Errorf("scrypt with 2^%d rounds: expected 1 to 20", n)
	}
	return scrypt.Key([]byte(password), salt, 1<<n, r, p, keyLength)
}
