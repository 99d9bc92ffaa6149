"""Expected bandwidths of given hardware: profiles, line rates, public references, bounds."""

JUDGE = 12
"""Version of the judge. It is raised when a log may get another verdict or expectation than before: it is in
the request of `busbar nccl collect`, so the next update judges the kept logs again."""
