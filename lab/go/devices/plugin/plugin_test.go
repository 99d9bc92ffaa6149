package plugin

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"busbar/lab/devices/hardware"
)

// kubelet simulates the kubelet's side of the API: it records who registers.
type kubelet struct {
	api.UnimplementedRegistrationServer
	registered chan *api.RegisterRequest
	server     *grpc.Server
}

func (k *kubelet) Register(_ context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	k.registered <- request
	return &api.Empty{}, nil
}

func startKubelet(t *testing.T, folder string) *kubelet {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(folder, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{registered: make(chan *api.RegisterRequest, 4), server: grpc.NewServer()}
	api.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(listener) }()
	t.Cleanup(k.server.Stop)
	return k
}

func (k *kubelet) expect(t *testing.T) *api.RegisterRequest {
	t.Helper()
	select {
	case request := <-k.registered:
		return request
	case <-time.After(10 * time.Second):
		t.Fatal("the plugin did not register")
		return nil
	}
}

func startPlugin(t *testing.T, folder, gpus string) (source string) {
	t.Helper()
	return start(t, folder, "gpu", "nvidia.com/gpu", gpus)
}

func start(t *testing.T, folder, kind, resource, devices string) (source string) {
	t.Helper()
	source = filepath.Join(t.TempDir(), "devices")
	if err := os.WriteFile(source, []byte(devices), 0o600); err != nil {
		t.Fatal(err)
	}
	inventory, err := hardware.ForKind(kind, resource, source)
	if err == nil && kind == "hca" {
		inventory, err = inventory.Once()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Options{Resource: resource, Folder: folder, CDIFolder: folder, Inventory: inventory})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return source
}

func dial(t *testing.T, folder, endpoint string) api.DevicePluginClient {
	t.Helper()
	connection, err := grpc.NewClient(
		"unix://"+filepath.Join(folder, endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return api.NewDevicePluginClient(connection)
}

// list returns when the plugin has sent its devices, as the kubelet waits before it allocates one.
func list(t *testing.T, client api.DevicePluginClient) {
	t.Helper()
	stream, err := client.ListAndWatch(t.Context(), &api.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
}

func TestAContainerGetsItsGPUsByTheNamesInTheFileOfCDI(t *testing.T) {
	folder := t.TempDir()
	kubelet := startKubelet(t, folder)
	startPlugin(t, folder, "2")
	client := dial(t, folder, kubelet.expect(t).Endpoint)
	list(t, client)
	answer, err := client.Allocate(t.Context(), &api.AllocateRequest{
		ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"GPU-lab-1", "GPU-lab-0"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := answer.ContainerResponses[0]
	if len(got.CdiDevices) != 2 || len(got.Devices) > 0 || len(got.Envs) > 0 {
		t.Fatalf("got %v", got)
	}
	specs, err := os.ReadFile(filepath.Join(folder, "k8s.device-plugin.nvidia.com-gpu.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, asked := range got.CdiDevices {
		kind, name, _ := strings.Cut(asked.Name, "=")
		if !strings.Contains(string(specs), kind) || !strings.Contains(string(specs), name) {
			t.Errorf("%s is not in %s", asked.Name, specs)
		}
	}
}

func TestAContainerFindsTheFoldersOfItsHCAs(t *testing.T) {
	folder := t.TempDir()
	kubelet := startKubelet(t, folder)
	start(t, folder, "hca", "nvidia.com/hostdev", "mlx5_0 200 ACTIVE\nmlx5_1 400 ACTIVE\n")
	client := dial(t, folder, kubelet.expect(t).Endpoint)
	answer, err := client.Allocate(t.Context(), &api.AllocateRequest{
		ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"mlx5_1@0000:21:00.0"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	mounts := answer.ContainerResponses[0].Mounts
	if len(mounts) != 1 || mounts[0].HostPath != "/usr/local/lib/busbar-lab/rails/mlx5_1" ||
		mounts[0].ContainerPath != mounts[0].HostPath || !mounts[0].ReadOnly {
		t.Fatalf("got %v", mounts)
	}
}

func TestALostDeviceIsOfferedNoMore(t *testing.T) {
	folder := t.TempDir()
	kubelet := startKubelet(t, folder)
	source := startPlugin(t, folder, "2")
	stream, err := dial(t, folder, kubelet.expect(t).Endpoint).ListAndWatch(t.Context(), &api.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := stream.Recv(); err != nil || len(first.Devices) != 2 {
		t.Fatalf("got %v, %v", first, err)
	}
	if err := os.WriteFile(source, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if second, err := stream.Recv(); err != nil || len(second.Devices) != 1 {
		t.Fatalf("got %v, %v", second, err)
	}
}

func TestAKubeletThatStartsAgainIsRegisteredWithAgain(t *testing.T) {
	folder := t.TempDir()
	first := startKubelet(t, folder)
	startPlugin(t, folder, "1")
	first.expect(t)
	first.server.Stop() // removes its socket, as a kubelet that ends does
	if request := startKubelet(t, folder).expect(t); request.ResourceName != "nvidia.com/gpu" {
		t.Fatalf("got %v", request)
	}
}

func TestALostHCAIsStillOfferedAndMissesInTheContainer(t *testing.T) {
	folder := t.TempDir()
	kubelet := startKubelet(t, folder)
	source := start(t, folder, "hca", "nvidia.com/hostdev", "mlx5_0\nmlx5_1\n")
	client := dial(t, folder, kubelet.expect(t).Endpoint)
	if err := os.WriteFile(source, []byte("mlx5_0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	answer, err := client.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{
		{DevicesIds: []string{"mlx5_0@0000:20:00.0", "mlx5_1@0000:21:00.0"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := answer.ContainerResponses[0]
	if len(got.Devices) != 1 || got.Envs["PCIDEVICE_NVIDIA_COM_HOSTDEV"] != "0000:20:00.0,0000:21:00.0" {
		t.Fatalf("got %v", got)
	}
}

func TestHCAsThatComeAfterTheDiscoveryAreNotOffered(t *testing.T) {
	folder := t.TempDir()
	kubelet := startKubelet(t, folder)
	source := start(t, folder, "hca", "nvidia.com/hostdev", "")
	if err := os.WriteFile(source, []byte("mlx5_0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case request := <-kubelet.registered:
		t.Fatalf("got %v", request)
	case <-time.After(2 * lookEvery):
	}
}
