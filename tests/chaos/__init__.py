"""The chaos bench: real silos, a real Redis, a seeded nemesis, and a checker for every promise."""
