"""What given hardware should reach: profiles, line rates, public references, bounds."""
