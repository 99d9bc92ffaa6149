// Package plugin speaks the kubelet's device-plugin API (v1beta1) for an inventory of devices.
package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"busbar/lab/devices/cdi"
	"busbar/lab/devices/hardware"
)

const (
	lookEvery        = 2 * time.Second
	registerDeadline = 10 * time.Second
	kubeletFolder    = "/var/lib/kubelet/device-plugins" // with kubelet.sock
	cdiFolder        = "/var/run/cdi"                    // where containerd looks for files of CDI
)

// Options are the devices and their resource name.
type Options struct {
	Resource  string
	Inventory *hardware.Inventory
}

// Run offers the devices until the context ends. A restarted kubelet forgets its plugins and empties
// their folder: its socket is then a new file, and the plugin starts over.
func Run(ctx context.Context, options Options) error {
	for ctx.Err() == nil {
		devices, err := options.Inventory.Devices()
		if err != nil {
			return err
		}
		if len(devices) == 0 {
			slog.Info("no devices in device pool, skipping creating resource server", "resource", options.Resource)
			waitFor(ctx, func() bool { found, err := options.Inventory.Devices(); return err != nil || len(found) > 0 })
			continue
		}
		if err := serveUntilKubeletRestarts(ctx, options); err != nil {
			slog.Warn("starting over", "resource", options.Resource, "error", err)
			wait(ctx)
		}
	}
	return nil
}

func serveUntilKubeletRestarts(ctx context.Context, options Options) error {
	socket := filepath.Join(kubeletFolder, strings.ReplaceAll(options.Resource, "/", "-")+".sock")
	kubelet := filepath.Join(kubeletFolder, "kubelet.sock")
	before, err := os.Stat(kubelet)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(socket); err != nil { // what an earlier life of this plugin left
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	serving, cancel := context.WithCancel(ctx)
	defer cancel()
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, &service{ctx: serving, options: options})
	defer server.Stop()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()

	if err := register(ctx, kubelet, filepath.Base(socket), options.Resource); err != nil {
		return err
	}
	slog.Info("registered", "resource", options.Resource)
	waitFor(ctx, func() bool {
		now, err := os.Stat(kubelet)
		return err != nil || !os.SameFile(before, now) || !now.ModTime().Equal(before.ModTime()) || len(failed) > 0
	})
	cancel()
	return nil
}

func register(ctx context.Context, kubelet, endpoint, resource string) error {
	ctx, cancel := context.WithTimeout(ctx, registerDeadline)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: endpoint, ResourceName: resource,
	})
	if err != nil {
		return fmt.Errorf("register %s with the kubelet: %w", resource, err)
	}
	return nil
}

type service struct {
	api.UnimplementedDevicePluginServer
	ctx     context.Context // ends the open streams with the plugin
	options Options
}

func (s *service) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch sends the list now and again whenever the host's inventory changes.
func (s *service) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	var sent []hardware.Device
	for first := true; s.ctx.Err() == nil && stream.Context().Err() == nil; first = false {
		devices, err := s.options.Inventory.Devices()
		if err != nil {
			return err
		}
		if first || !slices.Equal(sent, devices) {
			if kind := s.options.Inventory.CDI; kind != "" && len(devices) > 0 {
				if err := cdi.Write(cdiFolder, kind, devices); err != nil {
					return err
				}
			}
			answer := &api.ListAndWatchResponse{}
			for _, device := range devices {
				answer.Devices = append(answer.Devices, &api.Device{ID: device.ID, Health: api.Healthy})
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
			sent = devices
			slog.Info("offered", "resource", s.options.Resource, "devices", len(devices))
		}
		wait(stream.Context(), s.ctx.Done())
	}
	return nil
}

// Allocate gives a container one device node for each device that is there, so that it can count what it got, and the
// folders of HCAs. The variable has all devices, also those that the host has lost. With CDI it only names the devices.
func (s *service) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	devices, err := s.options.Inventory.Devices()
	if err != nil {
		return nil, err
	}
	present, err := s.options.Inventory.Present()
	if err != nil {
		return nil, err
	}
	answer := &api.AllocateResponse{}
	for _, wanted := range request.ContainerRequests {
		container := &api.ContainerAllocateResponse{}
		var values []string
		for _, id := range wanted.DevicesIds {
			index := slices.IndexFunc(devices, func(device hardware.Device) bool { return device.ID == id })
			if index < 0 {
				return nil, fmt.Errorf("%s: this host has no device %q (any more)", s.options.Resource, id)
			}
			if kind := s.options.Inventory.CDI; kind != "" {
				container.CdiDevices = append(container.CdiDevices, &api.CDIDevice{Name: cdi.Name(kind, devices[index])})
				continue
			}
			values = append(values, devices[index].Value)
			if !slices.Contains(present, devices[index]) {
				continue
			}
			container.Devices = append(container.Devices, &api.DeviceSpec{
				HostPath: "/dev/null", ContainerPath: devices[index].Path, Permissions: "rw",
			})
			if rail := devices[index].Rail; rail != "" {
				container.Mounts = append(container.Mounts, &api.Mount{HostPath: rail, ContainerPath: rail, ReadOnly: true})
			}
		}
		if variable := s.options.Inventory.Variable; variable != "" {
			slices.Sort(values)
			container.Envs = map[string]string{variable: strings.Join(values, ",")}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, container)
	}
	return answer, nil
}

// wait lets one interval pass, or less when the context or one of the channels ends.
func wait(ctx context.Context, ends ...<-chan struct{}) {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	var end <-chan struct{}
	if len(ends) > 0 {
		end = ends[0]
	}
	select {
	case <-ctx.Done():
	case <-end:
	case <-timer.C:
	}
}

func waitFor(ctx context.Context, condition func() bool) {
	for ctx.Err() == nil && !condition() {
		wait(ctx)
	}
}
