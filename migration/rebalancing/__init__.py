"""Even load by live moves: who has too much, how much goes where, which grains go, and what the receivers allow."""
