package components

import (
	"context"
	"errors"
	"net/http"
	"os"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"busbar/lab/k3s/internal/etcd"
	"busbar/lab/k3s/internal/join"
	"busbar/lab/k3s/internal/logx"
	"busbar/lab/k3s/internal/nodepassword/passwords"
)

// ServerDirEnv names <data-dir>/server to the apiserver process, which answers the supervisor's
// paths on its own port: thus client certificates, watches and exec streams need no second hop.
// Without it the apiserver is a plain one, for tests without hosts.
const ServerDirEnv = "K3S_LAB_SERVER_DIR"

func apiServer(args []string) int {
	if err := serveAPI(genericapiserver.SetupSignalContext(), args); err != nil && !errors.Is(err, context.Canceled) {
		logx.Fatalf("kube-apiserver: %v", err)
		return 1
	}
	return 0
}

// serveAPI is kube-apiserver's start-up with the supervisor's paths before its handlers.
func serveAPI(ctx context.Context, args []string) error {
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	opts := options.NewServerRunOptions()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	namedFlags := opts.Flags()
	for _, set := range namedFlags.FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	registry := opts.GenericServerRunOptions.ComponentGlobalsRegistry
	if err := registry.Set(); err != nil {
		return err
	}
	gate := registry.FeatureGateFor(compatibilityComponent)
	if err := logsapi.ValidateAndApply(opts.Logs, gate); err != nil {
		return err
	}
	completed, err := opts.Complete(ctx)
	if err != nil {
		return err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return utilerrors.NewAggregate(errs)
	}
	if mutable, ok := gate.(featuregate.MutableFeatureGate); ok {
		mutable.AddMetrics()
	}
	registry.AddMetrics()
	config, err := app.NewConfig(completed)
	if err != nil {
		return err
	}
	if err := addSupervisor(&config.Aggregator.GenericConfig.Config); err != nil {
		return err
	}
	ready, err := config.Complete()
	if err != nil {
		return err
	}
	server, err := app.CreateServerChain(ready)
	if err != nil {
		return err
	}
	prepared, err := server.PrepareRun()
	if err != nil {
		return err
	}
	return prepared.Run(ctx)
}

const compatibilityComponent = compatibility.DefaultKubeComponent

func addSupervisor(config *genericapiserver.Config) error {
	serverDir := os.Getenv(ServerDirEnv)
	if serverDir == "" {
		return nil
	}
	members := etcd.Instance{ServerDir: serverDir}.ClientURLs
	// The apiserver's own identity: the supervisor reads and writes Secrets in the same process.
	client, err := kubernetes.NewForConfig(config.LoopbackClientConfig)
	if err != nil {
		return err
	}
	supervisor, err := join.NewHandler(serverDir, members, passwords.Secrets{Client: client}, nil)
	if err != nil {
		return err
	}
	apiChain := config.BuildHandlerChainFunc
	config.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		supervisor.Next = apiChain(handler, c)
		return supervisor
	}
	return nil
}
