"""Secondary networks: interfaces that the pods of a pool have beside eth0, by way of Multus.

Configuration -> NetworkAttachmentDefinitions or the Network Operator's own resources -> what a pod of ours
carries to get them. A stack without `networks` has none of this.
"""
