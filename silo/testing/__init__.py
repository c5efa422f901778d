"""The testing kit: virtual time, simulated processes and networks, for whole clusters inside one test."""
