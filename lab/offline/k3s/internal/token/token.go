// Package token implements K3s's join tokens: the short form (a password) and the secure form
// K10<sha256 of the cluster CA>::<user>:<password>.
package token

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// The users a token can stand for.
const (
	Server = "server"
	Node   = "node"
)

const prefix = "K10"

// Token is a parsed token; CAHash and User are empty in the short form.
type Token struct {
	CAHash   string
	User     string
	Password string
}

// Parse reads both forms.
func Parse(text string) (Token, error) {
	if text == "" {
		return Token{}, errors.New("token must not be empty")
	}
	rest, secure := strings.CutPrefix(text, prefix)
	if !secure {
		return Token{Password: text}, nil
	}
	hash, credentials, found := strings.Cut(rest, "::")
	if !found {
		return Token{}, errors.New("invalid token format")
	}
	if hash != "" && len(hash) != sha256.Size*2 {
		return Token{}, errors.New("invalid token CA hash length")
	}
	user, password, found := strings.Cut(credentials, ":")
	if !found || password == "" {
		return Token{}, errors.New("invalid token format")
	}
	return Token{CAHash: hash, User: user, Password: password}, nil
}

// Secure renders the secure form for a CA bundle (PEM, as /cacerts serves it).
func Secure(caBundle []byte, user, password string) string {
	return fmt.Sprintf("%s%s::%s:%s", prefix, HashCA(caBundle), user, password)
}

// HashCA is the hash a secure token carries: SHA-256 over the PEM bytes.
func HashCA(caBundle []byte) string {
	sum := sha256.Sum256(caBundle)
	return hex.EncodeToString(sum[:])
}

// VerifyCA checks a served CA bundle against the token. A token without a hash pins nothing.
func (t Token) VerifyCA(caBundle []byte) error {
	if got := HashCA(caBundle); t.CAHash != "" && t.CAHash != got {
		return fmt.Errorf("token CA hash does not match the Cluster CA certificate hash: %s != %s", t.CAHash, got)
	}
	return nil
}

// Matches compares credentials in constant time.
func (t Token) Matches(user, password string) bool {
	return subtle.ConstantTimeCompare([]byte(t.User), []byte(user))&
		subtle.ConstantTimeCompare([]byte(t.Password), []byte(password)) == 1
}

// Generate makes a password for a cluster without a configured token.
func Generate() (string, error) {
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		return "", err
	}
	return hex.EncodeToString(raw), nil
}
