module busbar.lab/kmsg

go 1.26.0
