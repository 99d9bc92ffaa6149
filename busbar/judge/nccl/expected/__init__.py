"""Expected bandwidths of given hardware: profiles, line rates, public references, bounds."""

# Raised when a log may get another verdict than before, or another expectation: then kept logs are judged
# again (busbar.outputs.again). 2: size classes, GPU names, link layers, rise of the curve;
# 3: errors in unknown words after the start;
# 4: a floor of 1 - tolerance, INFO lines of failures, facts of hosts
JUDGE = 4
