"""Secondary networks: interfaces beside eth0 that Multus attaches to the pods of a pool.

Configuration -> NetworkAttachmentDefinitions or the Network Operator's own resources -> annotations and
resources of our pods. A stack without `networks` has none of this.
"""
