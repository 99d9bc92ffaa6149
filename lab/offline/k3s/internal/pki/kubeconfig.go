package pki

import (
	"encoding/base64"
	"fmt"
	"os"
)

// Kubeconfig is a client's access: the server, the CA bundle and the path of its certificate
// without suffix.
type Kubeconfig struct {
	Server string
	CA     []byte
	Client string // path.{crt,key}
}

// Write writes the kubeconfig with everything inlined, as K3s's k3s.yaml has it.
func (k Kubeconfig) Write(path string, mode os.FileMode) error {
	cert, err := os.ReadFile(k.Client + ".crt")
	if err != nil {
		return err
	}
	key, err := os.ReadFile(k.Client + ".key")
	if err != nil {
		return err
	}
	encode := base64.StdEncoding.EncodeToString
	text := fmt.Sprintf(`apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: %s
    server: %s
  name: default
contexts:
- context:
    cluster: default
    user: default
  name: default
current-context: default
kind: Config
preferences: {}
users:
- name: default
  user:
    client-certificate-data: %s
    client-key-data: %s
`, encode(k.CA), k.Server, encode(cert), encode(key))
	return WriteFile(path, []byte(text), mode)
}
