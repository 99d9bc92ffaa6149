// Package v2 takes the place of kinds.go in the package yaml/v2 of the Kubernetes provider's SDK. That file
// has a case for each kind and so imports the whole typed SDK, which takes ten minutes to compile.
package v2

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

// RegisterResource registers an object of any kind with the engine.
func RegisterResource(ctx *pulumi.Context, apiVersion, kind, name string, props pulumi.Input,
	opts ...pulumi.ResourceOption) (pulumi.CustomResource, error) {
	if apiVersion == "v1" {
		apiVersion = "core/v1"
	}
	var object pulumi.CustomResourceState
	if err := ctx.RegisterResource("kubernetes:"+apiVersion+":"+kind, name, props, &object, opts...); err != nil {
		return nil, err
	}
	return &object, nil
}
