// Command install-whereabouts does on one node what whereabouts' script install-cni.sh does, without a shell: it puts
// the plugin, its configuration and a kubeconfig into the host's CNI folders, and stays. As there, nothing is removed at its end.
//
//	install-whereabouts --cni-conf-dir DIR   (DIR on the host; it is mounted at /host/etc/cni/net.d)
//	install-whereabouts --copy NAME,NAME     (what the first init container of the chart rke2-multus does: it puts
//	                                          plugins that K3s lacks into the host's folder, and ends)
package main

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	binDir  = "/host/opt/cni/bin"
	confDir = "/host/etc/cni/net.d"
	folder  = "whereabouts.d"
	account = "/var/run/secrets/kubernetes.io/serviceaccount"
)

func main() {
	hostConfDir := flag.String("cni-conf-dir", "/etc/cni/net.d", "the host's folder of CNI configurations")
	plugins := flag.String("copy", "", "plugins of this image to copy; nothing else is done")
	flag.Parse()
	if *plugins != "" {
		for _, name := range strings.Split(*plugins, ",") {
			if err := copyPlugin(name); err != nil {
				log.Fatal(err)
			}
		}
		return
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	if err := install(filepath.Join(*hostConfDir, folder)); err != nil {
		log.Fatal(err)
	}
	log.Print("installed")
	<-stop
}

func install(hostFolder string) error {
	if err := os.MkdirAll(filepath.Join(confDir, folder), 0o755); err != nil {
		return err
	}
	kubeconfig, err := makeKubeconfig()
	if err != nil {
		return err
	}
	conf, err := json.Marshal(map[string]any{
		"datastore":  "kubernetes",
		"kubernetes": map[string]string{"kubeconfig": filepath.Join(hostFolder, "whereabouts.kubeconfig")},
	})
	if err != nil {
		return err
	}
	if err := copyPlugin("whereabouts"); err != nil {
		return err
	}
	for _, file := range []struct {
		name    string
		content []byte
	}{{"whereabouts.kubeconfig", kubeconfig}, {"whereabouts.conf", conf}} {
		if err := write(filepath.Join(confDir, folder, file.name), file.content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// copyPlugin puts a program of this image into the host's folder of CNI plugins.
func copyPlugin(name string) error {
	binary, err := os.ReadFile("/" + name)
	if err != nil {
		return err
	}
	return write(filepath.Join(binDir, name), binary, 0o755)
}

// makeKubeconfig returns a kubeconfig of the pod's service account. JSON is YAML.
func makeKubeconfig() ([]byte, error) {
	token, err := os.ReadFile(filepath.Join(account, "token"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return nil, err
	}
	type object = map[string]any
	server := fmt.Sprintf("https://%s:%s", os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	return json.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "whereabouts",
		"clusters": []object{{"name": "local", "cluster": object{
			"server": server, "certificate-authority-data": base64.StdEncoding.EncodeToString(ca),
		}}},
		"users": []object{{"name": "whereabouts", "user": object{"token": string(token)}}},
		"contexts": []object{{"name": "whereabouts", "context": object{
			"cluster": "local", "user": "whereabouts", "namespace": os.Getenv("WHEREABOUTS_NAMESPACE"),
		}}},
	})
}

// write replaces the file at once: a plugin that is being run cannot be written to.
func write(path string, content []byte, mode os.FileMode) error {
	stage := path + ".new"
	if err := os.WriteFile(stage, content, mode); err != nil {
		return err
	}
	return os.Rename(stage, path)
}
