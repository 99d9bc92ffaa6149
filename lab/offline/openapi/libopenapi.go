// Package libopenapi takes the place of github.com/pb33f/libopenapi, which takes a minute to compile. Only `pulumi
// cloud`, which no part of the lab runs, reads OpenAPI documents; here it says that it cannot.
package libopenapi

import (
	"errors"

	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
)

type (
	Document struct{}
	Model    struct{ Model v3.Document }
)

func NewDocument([]byte) (*Document, error) {
	return nil, errors.New("this build of Pulumi has no reader of OpenAPI documents")
}

func (*Document) BuildV3Model() (*Model, error) { return nil, nil }
