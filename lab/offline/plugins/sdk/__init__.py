"""What all plugins share: the gRPC server, property values, the base of a provider and of a resource."""
