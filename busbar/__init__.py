"""busbar: from a list of machines to a K3s cluster whose InfiniBand fabric has been measured.

Pure Python without pulumi: configuration, inventory, versions, the contract of the stack outputs, and
the reader of nccl-tests logs. The Pulumi program around it is `__main__.py` and `components/`.
"""

__version__ = "1.0.0"
