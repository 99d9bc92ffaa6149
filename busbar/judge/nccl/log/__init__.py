"""From the bytes of a launcher's log to tables, device lists and NCCL's own evidence."""
